"""KL estimators: exact values, expectations, and the two mistakes that change them."""

import pytest
import torch

from grpo_core.closed_forms import KL_SLOPE
from grpo_core.explain import kl_curves
from grpo_core.kl import KL, exact_kl, k3
from grpo_core.logprobs import log_softmax

REF = torch.tensor([0.1, 0.4, 0.5], dtype=torch.float64)
POLICY = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def kl(policy, ref):
    return float(exact_kl(policy.log().unsqueeze(0), ref.log().unsqueeze(0)))


def test_the_two_directions_of_one_pair_are_two_numbers():
    # KL(policy || ref) = .2 ln 2 + .3 ln .75 + 0 = .138629 - .086305; KL(ref || policy) = .1 ln .5 + .4 ln (4/3) + 0
    assert kl(POLICY, REF) == pytest.approx(0.052325, abs=5e-7)
    assert kl(REF, POLICY) == pytest.approx(0.045758, abs=5e-7)
    other = torch.nn.functional.kl_div(POLICY.log(), REF, reduction="sum")
    assert kl(REF, POLICY) == pytest.approx(float(other), rel=1e-12)


def test_k1_and_k3_expect_to_the_exact_kl_under_the_policy():
    for name in ("k1", "k3"):
        mean = float((POLICY * KL[name](POLICY.log() - REF.log())).sum())
        assert mean == pytest.approx(kl(POLICY, REF), rel=1e-12), name


def test_leaving_out_the_log_of_k3_is_another_quantity():
    # sum of ref · (ref / policy - 1) = .1 · (-.5) + .4 · (1/3) + 0 = .083333
    wrong = (REF * (REF / POLICY - 1)).sum()
    assert float(wrong) == pytest.approx(0.083333, abs=5e-7)
    assert abs(float(wrong) - kl(POLICY, REF)) > 0.03


@pytest.mark.parametrize(("difference", "value"), [(0.5, 0.1487), (-0.5, 0.1065), (5.0, 142.4132), (0.0, 0.0)])
def test_k3_of_ref_minus_policy(difference, value):
    # e^d - d - 1: e^.5 - 1.5 = .148721, e^-.5 - .5 = .106531, e^5 - 6 = 142.413159
    assert float(k3(torch.tensor([-difference]))) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(("name", "value"), [("k1", -0.5), ("k2", 0.125), ("k3", 0.148721), ("abs", 0.5)])
def test_each_estimator_where_the_reference_is_half_a_nat_likelier(name, value):
    assert float(KL[name](torch.tensor([-2.0]) - torch.tensor([-1.5]))) == pytest.approx(value, abs=1e-6)


def test_k3_keeps_its_digits_near_0():
    # d²/2 of 1e-3: 5.0017e-7; exp(d) - d - 1 in fp32 would be a multiple of 6e-8
    assert float(k3(torch.tensor([-1e-3]))) == pytest.approx(5.001667e-7, rel=1e-3)


def test_nothing_but_k1_is_ever_negative():
    x = torch.linspace(-8, 8, 2001)
    for name, estimate in KL.items():
        values = estimate(x)
        assert bool((values >= 0).all()) == (name != "k1"), name


def test_one_temperature_for_both_or_the_kl_is_not_0_at_the_start():
    # logits 2, 1, 0: p at T .5 = .86681 .11731 .01588, at T 1 = .66524 .24473 .09003: .22943 - .08626 - .02755 = .1156
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    mixed = exact_kl(log_softmax(logits, 0.5), log_softmax(logits, 1.0))
    same = exact_kl(log_softmax(logits, 0.5), log_softmax(logits, 0.5))
    assert float(mixed) == pytest.approx(0.1156, abs=5e-5) and float(same) == 0.0


@pytest.mark.parametrize("name", KL)
def test_the_written_slope_is_autograds(name):
    x = torch.tensor([-2.0, -0.3, 0.4, 3.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(KL[name](x).sum(), x)
    torch.testing.assert_close(KL_SLOPE[name](x.detach()), slope, rtol=1e-12, atol=0)


def test_curves_are_the_estimators_themselves():
    curves = kl_curves(-1.0, 1.0, points=3)
    assert set(curves) == {"x", *KL}
    assert curves["k2"].tolist() == [0.5, 0.0, 0.5] and curves["k1"].tolist() == [-1.0, 0.0, 1.0]
