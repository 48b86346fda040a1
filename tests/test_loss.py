"""The loss: known answers for ratios, surrogates and aggregations, and what masked slots may not do."""

import pytest
import torch
from builders import BASE_ADVANTAGES, BASE_MASK, loss_of, one_token
from jaxtyping import TypeCheckError

from grpo_core import LossConfig, LossTerms, Totals, summarize
from grpo_core.aggregation import AGGREGATION
from grpo_core.explain import surrogate_curve
from grpo_core.splitting import detached

LOSSES = {  # A · tokens: .865875 · (3 - 2 - 4 + 1) = -1.73175
    "seq-mean-token-mean": 0.0,  # -(.865875 - .865875 - .865875 + .865875) / 4
    "token-mean": 0.173175,  # 1.73175 / 10 tokens
    "dr_grpo": 0.108234,  # 1.73175 / (4 rows · 4)
    "seq-mean-token-sum": 0.432938,  # 1.73175 / 4 rows
    "token-sum": 1.73175,
    "sum-over-width": 0.432938,  # 1.73175 / 4 positions
    "micro-token-mean": 0.173175,  # one micro-batch: token-mean
    "micro-seq-mean-token-mean": 0.0,
    "length-over-cells": 0.541172,  # .865875 · (-3² + 2² + 4² - 1²) / 16 cells
}
CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def base(**settings) -> LossTerms:
    logprobs = torch.full((4, 4), -1.0, requires_grad=True)
    defaults = {"beta": 0.0, "max_completion_length": 4}
    return loss_of(logprobs, BASE_ADVANTAGES, BASE_MASK, **defaults | settings)


@pytest.mark.parametrize(("aggregation", "value"), LOSSES.items())
def test_one_batch_under_every_aggregation(aggregation, value):
    assert set(LOSSES) == set(AGGREGATION)
    assert float(base(aggregation=aggregation).loss.detach()) == pytest.approx(value, abs=1e-6)


def test_the_constant_length_is_what_was_allowed_and_not_what_was_sampled():
    # 1.73175 / (4 rows · 8 allowed), though the longest row has 4 tokens
    terms = base(aggregation="dr_grpo", max_completion_length=8)
    assert float(terms.loss.detach()) == pytest.approx(0.054117, abs=1e-6)


def test_a_loss_of_0_has_a_gradient_of_0_3124():
    # |A| / 4 · sqrt(1/3 + 1/2 + 1/4 + 1/1) = .216469 · 1.443376 = .312446
    terms = base()
    (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
    assert float(terms.loss.detach()) == pytest.approx(0.0, abs=1e-7)
    assert float(grad.norm()) == pytest.approx(0.312446, abs=1e-6)


def test_ratio_has_value_1_and_the_gradient_of_the_log_prob():
    # one token, A = .7: d/dx of -exp(x - x.detach()) · A = -A
    logprobs = torch.tensor([[-2.0]], requires_grad=True)
    terms = loss_of(logprobs, torch.tensor([0.7]), torch.ones(1, 1, dtype=torch.bool), beta=0.0)
    (grad,) = torch.autograd.grad(terms.loss, logprobs)
    assert float(terms.ratio.detach()) == 1.0 and float(grad) == pytest.approx(-0.7)


@pytest.mark.parametrize(
    ("ratio", "clipped", "dual"), [(0.5, 0.8, 0.8), (1, 1, 1), (1.3, 1.3, 1.3), (1.5, 1.5, 1.4), (3, 3, 1.4)]
)
def test_dual_clip_caps_what_a_bad_token_can_cost(ratio, clipped, dual):
    # A = -1, eps .2: -min(-ratio, -clamp(ratio)) = max(ratio, clamp(ratio)), and never above 1.4
    assert float(one_token(ratio, -1.0, **CLIP).token_loss) == pytest.approx(clipped)
    capped = one_token(ratio, -1.0, surrogate="dual-clip", dual_clip=1.4, **CLIP)
    assert float(capped.token_loss) == pytest.approx(dual)
    assert bool(capped.is_clipped) == (ratio in (0.5, 1.5, 3))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 3.0])
def test_dual_clip_leaves_good_tokens_alone(ratio):
    dual = one_token(ratio, 1.0, surrogate="dual-clip", dual_clip=1.4)
    assert torch.equal(dual.token_loss, one_token(ratio, 1.0).token_loss)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [(1.5, 1.0, -1.2, True), (0.5, 1.0, -0.5, False), (1.5, -1.0, 1.5, False), (0.5, -1.0, 0.8, True)],
)
def test_the_clip_bites_only_where_the_update_went_far_enough(ratio, advantage, loss, clipped):
    terms = one_token(ratio, advantage)
    assert float(terms.token_loss) == pytest.approx(loss) and bool(terms.is_clipped) == clipped


def test_low_and_high_clip_are_two_settings():
    assert float(one_token(1.25, 1.0, clip_low=0.2, clip_high=0.28).token_loss) == pytest.approx(-1.25)
    assert float(one_token(1.5, 1.0, clip_low=0.2, clip_high=0.28).token_loss) == pytest.approx(-1.28)
    assert float(one_token(0.5, -1.0, clip_low=0.1, clip_high=0.28).token_loss) == pytest.approx(0.9)


def test_clip_0_lets_the_first_update_through():
    # ratio 1 is inside [1, 1]: nothing is clipped and the gradient is whole
    terms = base(clip_low=0.0, clip_high=0.0)
    (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
    assert not terms.is_clipped.any() and float(grad.norm()) == pytest.approx(0.312446, abs=1e-6)


def test_no_surrogate_does_not_clip():
    terms = one_token(9.0, 1.0, surrogate="none")
    assert float(terms.token_loss) == pytest.approx(-9.0) and not terms.is_clipped.any()


def test_the_sequence_ratio_is_the_geometric_mean_of_the_row():
    # log-ratios .1 and .3 of two trained tokens, a masked third: exp(.2) = 1.221403 on both
    logprobs, old = torch.tensor([[0.1, 0.3, 9.0]]), torch.zeros(1, 3)
    mask = torch.tensor([[True, True, False]])
    terms = loss_of(logprobs, torch.tensor([1.0]), mask, old=old, ratio="sequence", beta=0.0)
    assert terms.ratio[0].tolist() == pytest.approx([1.221403, 1.221403, 0.0], abs=1e-6)


def test_clip_fraction_counts_trained_tokens_only():
    # two of four positions trained, both at ratio 2 with A > 0: all of them clipped, half of the positions
    logprobs, mask = torch.full((1, 4), 2.0).log(), torch.tensor([[True, True, False, False]])
    terms = loss_of(logprobs, torch.tensor([1.0]), mask, old=torch.zeros(1, 4))
    assert float(terms.is_clipped.float().mean()) == 0.5
    assert summarize(terms, mask)["clip_fraction"] == 1.0


def test_kl_and_entropy_are_weighed_and_added():
    # seq mean of one row of two tokens, ref .5 above: k3 = .148721 each; entropies 1 and 3: mean 2; A = 0
    logprobs, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    terms = loss_of(
        logprobs, torch.zeros(1), mask, ref=logprobs + 0.5, entropy=torch.tensor([[1.0, 3.0]]), beta=0.1, entropy_coef=0.01
    )
    assert float(terms.kl_loss) == pytest.approx(0.148721, abs=1e-6) and float(terms.entropy_loss) == pytest.approx(2.0)
    assert float(terms.loss) == pytest.approx(0.1 * 0.148721 - 0.01 * 2, abs=1e-6)


def test_every_field_is_0_where_masked_and_the_correction_1():
    terms = base(beta=0.1)
    for name, values in vars(terms).items():
        if values.dim() == 2:
            outside = values[~BASE_MASK]
            assert (outside == (1 if name == "correction" else 0)).all(), name


@pytest.mark.parametrize("aggregation", AGGREGATION)
def test_micro_batches_with_the_totals_of_all_add_up(aggregation):
    rng = torch.Generator().manual_seed(4)
    logprobs, old, ref, entropy = (torch.randn(4, 4, generator=rng) for _ in range(4))
    totals = Totals(rows=4, tokens=BASE_MASK.sum(), micro_batches=2)
    settings = {"aggregation": aggregation, "beta": 0.1, "entropy_coef": 0.01}

    def loss(rows, given):
        part = {"old": old[rows], "ref": ref[rows], "entropy": entropy[rows], "totals": given}
        return loss_of(logprobs[rows], BASE_ADVANTAGES[rows], BASE_MASK[rows], **part, **settings).loss

    split = loss(slice(0, 1), totals) + loss(slice(1, 4), totals)
    micro = aggregation.startswith("micro-")  # the mean of what each micro-batch would be alone
    expected = (loss(slice(0, 1), None) + loss(slice(1, 4), None)) / 2 if micro else loss(slice(0, 4), None)
    torch.testing.assert_close(split, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATION)
def test_rows_without_a_trained_token_weigh_nothing_and_break_nothing(aggregation):
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    leaf = torch.zeros(4, 4, requires_grad=True)
    terms = loss_of(leaf, BASE_ADVANTAGES, nothing, aggregation=aggregation)
    (grad,) = torch.autograd.grad(terms.loss, leaf)
    assert float(terms.loss.detach()) == 0.0 and (grad == 0).all()
    assert summarize(detached(terms), nothing)["ratio_max"] == 0.0


def test_an_advantage_per_token_is_taken_as_it_is():
    per_row = base()
    per_token = loss_of(
        torch.full((4, 4), -1.0), BASE_ADVANTAGES.unsqueeze(1).expand(4, 4), BASE_MASK, beta=0.0, max_completion_length=4
    )
    assert torch.equal(per_row.token_loss, per_token.token_loss)


def test_the_clip_diagram_is_drawn_by_the_loss_itself():
    curve = surrogate_curve(LossConfig(surrogate="dual-clip", dual_clip=1.4), -1.0, 0.5, 3.0, points=6)
    single = [one_token(float(r), -1.0, surrogate="dual-clip", dual_clip=1.4).token_loss for r in curve["ratio"]]
    torch.testing.assert_close(curve["objective"], -torch.cat(single).flatten().float())


def test_this_session_checks_shapes():
    # pyproject.toml switches it on; without it the annotations would be comments
    with pytest.raises(TypeCheckError):
        loss_of(torch.zeros(4, 4), BASE_ADVANTAGES[:3], BASE_MASK)
