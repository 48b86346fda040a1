"""The table of presets: every row builds, says where it is from, needs exactly what it reads, and runs as a step."""

from dataclasses import fields, replace

import pytest
import torch
from test_golden import DEFAULT, golden, inputs_of
from variants import VARIANTS, label

from grpo_core import Recipe, grpo_step, reweigh
from grpo_core.compare import evaluate
from grpo_core.convention import Convention
from grpo_core.inputs import missing
from grpo_core.presets import PRESETS, preset
from grpo_core.presets.preset import FREE

LOG_PROBS = ("old_logprobs", "ref_logprobs", "sampler_logprobs")
FIELDS = (*LOG_PROBS, "entropy", "rewards", "truncated")
TENSORS = ("log_ratio", "ratio", "is_clipped", "correction", "token_loss", "token_weight", "kl", "kl_weight", "entropy", "loss")


@pytest.fixture(scope="module")
def inputs():
    """The golden batch in fp64."""
    return inputs_of(golden(DEFAULT)["inputs"], torch.float64)


# ---- the rows ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_and_where_it_is_from(name):
    row = PRESETS[name]
    assert row.name == name and row.trainer and row.summary and row.source
    assert row.version or row.trainer == "Papers"
    for text in (row.name, row.trainer, row.version, row.summary, row.source, row.quirk):
        assert text == text.strip() and "  " not in text and "\n" not in text


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_settings_make_a_convention_and_a_recipe(name):
    row = PRESETS[name]
    values, names = row.values(), {f.name for f in fields(Convention)}
    assert set(row.settings) <= names and set(values) == names - set(FREE)
    recipe = Recipe(**values, preset=name)
    assert replace(recipe.convention(), max_completion_length=1) == replace(row.convention(), max_completion_length=1)
    assert Recipe.repaired(values | {"preset": name}) == (recipe, [])


def test_no_two_presets_of_a_trainer_are_the_same_settings():
    seen: dict = {}
    for row in PRESETS.values():
        seen.setdefault((row.name.split("/")[0], row.convention()), []).append(row.name)
    assert [names for names in seen.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    ("wrong", "near"), [("tlr/gspo", "trl/gspo"), ("verl/dapo_tv", "verl/dppo_tv"), ("TRL/GRPO", "trl/grpo")]
)
def test_a_wrong_name_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=f"preset: found '{wrong}', allowed: .*nearest: .*{near}"):
        preset(wrong)


def test_a_name_like_none_is_answered_with_the_trainers():
    with pytest.raises(ValueError, match="nearest: trl, "):
        preset("qqqqqqqq")


# ---- what each needs ---------------------------------------------------------------------------------------------------------
def other_values(inputs, field):
    """The batch with the field's values changed, every one of them."""
    rng = torch.Generator().manual_seed(1)
    if field == "rewards":
        return tuple((float(value),) for value in torch.randn(len(inputs.mask), generator=rng))
    values = getattr(inputs, field)
    if field == "truncated":
        return ~values
    noise = torch.rand(values.shape, generator=rng, dtype=values.dtype)
    return -4 * noise if field in LOG_PROBS else values * noise


def results(inputs, convention):
    got = evaluate(inputs, convention)
    return torch.cat([got.terms.loss.view(1), got.grad.flatten()])


CONVENTIONS = {name: row.convention() for name, row in PRESETS.items()}
CONVENTIONS |= {label(settings): Convention(**settings) for settings in VARIANTS if settings.get("ratio", "token") == "token"}
CONVENTIONS |= {
    "no ratio, but a KL times it": Convention(surrogate="log-prob", kl_gradient="times-ratio"),
    "no ratio, but a gate on it": Convention(surrogate="log-prob", gates=("on-policy-rows",)),
    "sampler ratio, gate on old": Convention(ratio_against="sampler", gates=("on-policy-rows",)),
    "sampler KL without a beta": Convention(kl_against="sampler", beta=0.0),
}
# Gates that keep some rows and drop others of this batch.
CONVENTIONS = {name: replace(convention, off_policy_threshold=0.5) for name, convention in CONVENTIONS.items()}


@pytest.fixture(scope="module")
def whole(inputs):
    """Every convention's loss and gradient on the batch that has everything."""
    return {name: results(inputs, convention) for name, convention in CONVENTIONS.items()}


@pytest.mark.parametrize("field", FIELDS)
def test_a_convention_needs_what_it_reads_and_computes_nothing_without_it(inputs, whole, field):
    stripped, changed = replace(inputs, **{field: None}), replace(inputs, **{field: other_values(inputs, field)})
    wrong = []
    for name, convention in CONVENTIONS.items():
        lacking, reads = missing(stripped, convention), not torch.equal(results(changed, convention), whole[name])
        if lacking != ((field,) if reads else ()):
            wrong.append((name, lacking, reads))
        elif lacking:
            with pytest.raises(ValueError, match=f"needs {field}$"):
                evaluate(stripped, convention)
        else:
            assert torch.equal(results(stripped, convention), whole[name]), name
    assert wrong == []


# ---- micro-batches -----------------------------------------------------------------------------------------------------------
def split_losses(inputs, convention):
    """The loss of one optimizer step as 1, 2 and 4 micro-batches of rows sorted by length."""
    order = inputs.mask.sum(1).argsort(stable=True).tolist()
    splits = [[order[start : start + 12 // count] for start in range(0, 12, 12 // count)] for count in (1, 2, 4)]
    return [float(evaluate(inputs, convention, split).terms.loss) for split in splits]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trl/bnpo", [0.28826, 0.40820, 0.35530]),
        ("trl", [0.28826] * 3),
        ("trl/grpo", [0.44682] * 3),
        ("trl/dr_grpo", [0.19618] * 3),
    ],
)
def test_a_mean_over_the_micro_batchs_own_tokens_depends_on_the_split(inputs, name, expected):
    convention = replace(preset(name).convention(), advantage_std="unbiased")
    assert split_losses(inputs, convention) == pytest.approx(expected, abs=5e-6)


def reads_the_micro_batch(c: Convention) -> bool:
    parts = (c.aggregation, c.kl_aggregation if c.beta else "", c.entropy_aggregation if c.entropy_coef else "")
    return any(name.startswith("micro-") for name in parts) or c.surrogate.endswith("-cov") or "top-entropy" in c.gates


def test_what_depends_on_the_split_and_what_does_not(inputs):
    depends = set()
    for name, row in PRESETS.items():
        whole, two, four = split_losses(inputs, row.convention())
        if max(abs(whole - two), abs(whole - four)) > 1e-7 * max(1.0, abs(whole)):
            depends.add(name)
    assert depends <= {name for name, row in PRESETS.items() if reads_the_micro_batch(row.convention())}
    assert {"trl/bnpo", "liger/bnpo", "trl/top-entropy"} <= depends


@pytest.mark.parametrize("name", ["skyrl", "skyrl/dual-clip"])
def test_a_mean_over_the_micro_batchs_rows_depends_on_uneven_splits_only(inputs, name):
    convention, rows = preset(name).convention(), list(range(12))
    whole, even, uneven = (
        float(evaluate(inputs, convention, split).terms.loss) for split in ([rows], [rows[:6], rows[6:]], [rows[:2], rows[2:]])
    )
    assert even == pytest.approx(whole, rel=1e-12) and abs(uneven - whole) > 1e-5


# ---- a real step -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_reweighing_to_a_preset_equals_its_step(policy, rollout, recipe, trace, name):
    changed = replace(recipe, **PRESETS[name].values(), updates=1)
    full, quick = grpo_step(policy.clone(), policy, rollout, changed), reweigh(trace, changed)
    (theirs,), (ours,) = full.updates, quick.updates
    for tensor in TENSORS:
        assert torch.equal(getattr(ours.terms, tensor), getattr(theirs.terms, tensor)), tensor
    assert torch.equal(ours.logprob_grad, theirs.logprob_grad)
    assert torch.equal(quick.token_advantages, full.token_advantages)
    assert theirs.applied and not ours.applied
    assert (theirs.logprob_grad[~full.batch.trained_mask()] == 0).all()
