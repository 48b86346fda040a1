"""One batch under every preset: the table, the bridge between two, the preset behind a printed number."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from test_golden import DEFAULT, NAMES, golden, inputs_of

from grpo_core import grpo_step
from grpo_core.bridge import KNOBS, bridge, differing
from grpo_core.compare import NUMBERS, compare, cosine, evaluate, reaggregated
from grpo_core.convention import Convention
from grpo_core.fingerprint import candidates, decimals_of, fingerprint, matches
from grpo_core.inputs import LossInputs
from grpo_core.presets import PRESETS, preset

GOLDEN = golden(DEFAULT)


@pytest.fixture(scope="module")
def inputs():
    return inputs_of(GOLDEN["inputs"])


@pytest.fixture(scope="module")
def table(inputs):
    return {row.preset.name: row for row in compare(inputs, against="trl")}


@pytest.fixture(scope="module")
def printable(inputs):
    return candidates(inputs)


def conventions(*names):
    return [preset(name).convention() for name in names]


# ---- the table ---------------------------------------------------------------------------------------------------------
def test_the_same_batch_gives_four_trainers_four_losses(table):
    losses = [round(table[name].evaluation.loss, 6) for name in ("trl", "verl", "roll", "nemo")]
    assert losses == [0.288258, 0.116434, 0.446902, -0.169590]


def test_every_preset_has_its_line_and_the_parts_add_up(table, inputs):
    assert list(table) == list(PRESETS)
    for row in table.values():
        numbers, got = row.numbers(), row.evaluation
        assert tuple(numbers) == NUMBERS and all(value is None or math.isfinite(value) for value in numbers.values())
        assert numbers["loss"] == pytest.approx(numbers["policy_loss"] + numbers["kl_part"] + numbers["entropy_part"], abs=1e-5)
        size = float(got.contributions().abs().sum())
        assert float(got.contributions().sum()) == pytest.approx(got.loss, abs=1e-6 * size)
        assert not got.grad[~inputs.mask].any()


def test_cosines_are_to_the_chosen_preset(table, inputs):
    assert table["trl"].cosine == pytest.approx(1.0)
    one, other = table["verl"].evaluation.grad.flatten().double(), table["trl"].evaluation.grad.flatten().double()
    assert table["verl"].cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(one, other, dim=0)))
    assert all(row.cosine is None for row in compare(inputs, ["trl", "verl"]))
    assert cosine(one, torch.zeros_like(one)) is None


def test_what_the_batch_lacks_is_named_and_not_computed(inputs):
    (row,) = compare(replace(inputs, sampler_logprobs=None), ["tinker"], against="tinker")
    assert row.needs == ("sampler_logprobs",) and row.evaluation is None and row.numbers() == {}


def test_another_aggregation_of_the_same_token_losses_is_that_convention(inputs):
    for name, aggregation in itertools.product(
        ("trl/kl", "skyrl", "roll/entropy", "liger/luspo-token"), ("token-sum", "dr_grpo")
    ):
        convention = preset(name).convention()
        expected = evaluate(inputs, replace(convention, aggregation=aggregation))
        loss, policy_part = reaggregated(inputs, evaluate(inputs, convention), aggregation)
        assert loss == pytest.approx(expected.loss, rel=1e-5)
        assert policy_part == pytest.approx(float(expected.terms.policy_loss), rel=1e-5)


@pytest.mark.parametrize("update", [0, 1])
def test_a_traced_step_compared_under_its_own_settings_is_the_step(policy, rollout, recipe, update):
    trace = grpo_step(policy.clone(), policy, rollout, recipe)
    got = evaluate(LossInputs.of_trace(trace, update), recipe.convention())
    assert torch.equal(got.terms.loss, trace.updates[update].terms.loss)
    assert torch.equal(got.grad, trace.updates[update].logprob_grad)


# ---- the bridge --------------------------------------------------------------------------------------------------------
def test_every_setting_belongs_to_one_knob():
    names = [name for group in KNOBS.values() for name in group]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("start", list(PRESETS)[::25])
@pytest.mark.parametrize("end", list(PRESETS)[7::28])
def test_any_two_presets_have_a_bridge_whose_bars_sum_exactly(inputs, start, end):
    ends = conventions(start, end)
    bars = bridge(inputs, *ends)
    first, last = (evaluate(inputs, convention).loss for convention in ends)
    assert math.fsum(bar.delta for bar in bars) == last - first
    assert [knob for bar in bars for knob in bar.knobs] == list(differing(*ends))


def test_from_trl_to_verl_dual_clip_makes_the_gap(inputs):
    bars = {bar.knobs: bar for bar in bridge(inputs, *conventions("trl", "verl"))}
    # .28825808 with eps 1e-4, .28830579 with 1e-6; dual clip brings .28830579 down to .11643412
    assert bars["std_eps",].delta == pytest.approx(0.28830579 - 0.28825808, abs=1e-7)
    assert bars["surrogate",].delta == pytest.approx(0.11643412 - 0.28830579, abs=1e-7)
    assert all(
        bar.delta == 0 and not bar.touched.any() for knobs, bar in bars.items() if knobs[0] not in ("std_eps", "surrogate")
    )
    # the tokens over the ceiling: A < 0 and ratio > 3
    terms = bars["surrogate",].before.terms
    over = (terms.ratio > 3) & (bars["surrogate",].before.advantages < 0)
    assert torch.equal(bars["surrogate",].touched, over)


def test_the_order_changes_the_bars_and_not_their_sum(inputs):
    ends = conventions("trl", "roll/dual-clip")
    forth, back = bridge(inputs, *ends), bridge(inputs, *ends, order=("aggregation", "surrogate"))
    assert [bar.knobs[0] for bar in back][:2] == ["aggregation", "surrogate"]
    gained = [{bar.knobs: bar.delta for bar in bars} for bars in (forth, back)]
    assert gained[0].keys() == gained[1].keys() and gained[0] != gained[1]
    assert math.fsum(gained[0].values()) == math.fsum(gained[1].values())


def test_a_knob_that_does_not_exist_is_refused(inputs):
    with pytest.raises(ValueError, match="order: found 'colour', allowed: reward, "):
        bridge(inputs, *conventions("trl", "verl"), order=("colour",))


def test_steps_that_the_batch_cannot_show_are_one_bar(inputs):
    start = Convention(beta=0.0, kl_gradient="times-sampler-ratio")
    end = Convention(beta=0.04, aggregation="token-mean")
    bars = bridge(replace(inputs, sampler_logprobs=None), start, end)
    assert [bar.knobs for bar in bars] == [("aggregation",), ("kl", "kl_gradient")]


def test_an_end_that_the_batch_cannot_show_is_refused(inputs):
    with pytest.raises(ValueError, match="needs sampler_logprobs"):
        bridge(replace(inputs, sampler_logprobs=None), *conventions("trl", "tinker"))


# ---- the fingerprint ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", GOLDEN["presets"])
def test_the_loss_that_a_trainer_printed_leads_back_to_its_preset(printable, name):
    found = [m for m in matches(printable, GOLDEN["presets"][name]["loss"], decimals=7) if m.exact]
    assert (NAMES[name], True, "loss") in [(m.preset, m.own_aggregation, m.part) for m in found]


def test_presets_as_they_stand_come_before_changed_ones_and_the_nearest_has_its_gap(inputs, printable):
    exact = matches(printable, 0.447, decimals=3)
    assert exact == fingerprint(inputs, 0.447, decimals=3)
    assert exact[0].own_aggregation and exact[0].exact and abs(exact[0].gap) <= 5e-4
    nothing = matches(printable, 1234.5, decimals=1)
    assert not any(match.exact for match in nothing)
    assert [abs(m.gap) for m in nothing] == sorted(abs(m.gap) for m in nothing)
    assert nothing[0].gap == pytest.approx(nothing[0].value - 1234.5)


def test_decimals_are_counted_as_printed():
    assert [decimals_of(text) for text in ("0.447", "-1", "1.2e-05", "2.50", " 3.1 ", "1e3")] == [3, 0, 6, 2, 1, 0]
    with pytest.raises(ValueError, match="could not convert"):
        decimals_of("loss")


# ---- micro-batches -------------------------------------------------------------------------------------------------------
def test_the_batchs_own_micro_batches_are_used(inputs):
    order = inputs.mask.sum(1).argsort().tolist()
    split = replace(inputs, micro_batches=(tuple(order[:6]), tuple(order[6:])))
    bnpo, dapo = conventions("trl/bnpo", "trl")
    assert evaluate(split, bnpo).loss != pytest.approx(evaluate(inputs, bnpo).loss, rel=1e-3)
    whole, parts = evaluate(inputs, dapo), evaluate(split, dapo)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    torch.testing.assert_close(parts.grad, whole.grad)
    torch.testing.assert_close(parts.terms.ratio, whole.terms.ratio, rtol=0, atol=0)  # rows back in their places
