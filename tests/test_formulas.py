"""Every preset's formulas are true: with the selected token's numbers in them, both sides are equal."""

from dataclasses import replace

import pytest
import torch
from latex import evaluate

from grpo_core import Recipe, StepTrace, explain
from grpo_core.advantages import ADVANTAGE_MEAN, ADVANTAGE_STD, WHITEN
from grpo_core.aggregation import AGGREGATION
from grpo_core.correction import BOUND, CORRECTION, GATE
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.loss import RATIO
from grpo_core.presets import PRESETS
from grpo_core.rollout import to_batch
from grpo_core.splitting import detached
from grpo_core.step import advantages_of, loss_of_batch
from grpo_core.surrogate import SURROGATE
from lessons import BY_SLUG, formula_rows, view
from lessons.lesson import Context, Selection
from lessons.trace import Step

SLUGS = ("rewards", "advantages", "ratio", "kl", "clip", "aggregation", "backward")


class Desk:
    """What a context asks a workbench for, uncached: the traces here are made up."""

    def __init__(self, policy):
        self.loaded = policy

    def policy(self, recipe):
        return self.loaded

    def vocabulary_row(self, step, update, row, column):
        return explain.vocabulary_row(self.loaded, step.trace, update, row, column)


@pytest.fixture(scope="module")
def base(trace, recipe):
    return replace(recipe, reward_functions=("correct", "format"), reward_weights=(1.0, 0.2))


@pytest.fixture(scope="module")
def off_policy(policy, base):
    """A finished step far from its old policy, its reference and its sampler, by a function of the recipe."""
    view.start(base.model)
    first = view.bench().step(base).trace

    def under(recipe: Recipe, spread: float = 0.3) -> StepTrace:
        random, batch = torch.Generator().manual_seed(3), to_batch(first.rollout, recipe.layout, recipe.mask_truncated)
        at = first.updates[0]  # scored by the loaded weights, which `Desk` has

        def near(values, size=spread):
            return torch.where(
                batch.trained_mask(), (values + size * torch.randn(values.shape, generator=random)).clamp(max=0), 0.0
            )

        old, ref, sampler = near(at.terms.policy_logprobs), near(at.terms.policy_logprobs), near(at.terms.policy_logprobs)
        batch = replace(batch, sampler_logprobs=sampler)
        advantages = advantages_of(first.rollout, batch, old, ref, recipe)
        leaf = torch.where(batch.trained_mask(), at.terms.policy_logprobs, 0.0).requires_grad_()
        terms = loss_of_batch(leaf, old, ref, (advantages[0].reward, advantages[1]), at.terms.entropy, batch, recipe)
        (grad,) = torch.autograd.grad(terms.loss, terms.policy_logprobs)
        count = int(batch.trained_mask().sum())
        update = replace(at, terms=detached(terms), logprob_grad=grad, hidden=at.hidden[:count])
        return replace(
            first, recipe=recipe, batch=batch, advantages=advantages[0], token_advantages=advantages[1], old_logprobs=old,
            ref_logprobs=ref, updates=(update,),
        )  # fmt: skip

    return under


def hold(policy, trace: StepTrace) -> set[str]:
    """Every formula of every lesson, at one token of every row: the first of the first row, the second of the next, …
    Returns the quantities that had one."""
    found = set()
    for row, trained in enumerate(trace.batch.trained_mask()):
        columns = trained.nonzero().flatten().tolist()
        if columns:
            column = columns[row % len(columns)]
            context = Context(
                Desk(policy), Step(trace=trace), Selection(row=row, pos=int(trace.batch.token_positions()[column]))
            )
            assert (context.row, context.column) == (row, column)
            found |= holds(context)
    return found


def holds(context: Context) -> set[str]:
    def number(name: str) -> float:
        plain, _, index = name.partition(".")
        axes = context.here(name)[1]
        place = int(index) if index else axes.get("token")
        return float(context.value(plain, axes["row"], axes["pos"], place))

    found = set()
    for slug in SLUGS:
        template = BY_SLUG[slug].formula(context)
        for name, (left, right) in evaluate(template, number).items():
            room = 3e-4 * max(abs(left), abs(right)) + 3e-6
            assert left == pytest.approx(right, abs=room), (
                context.recipe.preset,
                slug,
                context.row,
                context.pos,
                name,
                template,
            )
            found.add(name)
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_every_presets_formulas_are_true_with_the_tokens_numbers(name, policy, base, off_policy):
    recipe = replace(base, preset=name, **PRESETS[name].values())
    found = hold(policy, off_policy(recipe))
    assert {"<<reward>>", "<<ratio>>", "<<kl>>", "<<token_loss>>", "<<token_weight>>", "<<loss>>", "<<logit_grad>>"} <= found


ODD = {
    "ratio": [{"ratio": name} for name in RATIO] + [{"ratio": "segment", "log_ratio_bound": 0.05}],
    "surrogate": [{"surrogate": s, "cov_fraction": 0.2, "cov_bounds": (-9.0, 9.0)} for s in SURROGATE]
    + [{"surrogate": s, "ratio_against": "sampler", "clip_low": 0.01, "clip_high": 0.02, "dual_clip": 1.05} for s in SURROGATE],
    "kl": [{"kl_estimator": e, "kl_gradient": g, "beta": 0.7} for e in KL for g in KL_GRADIENT]
    + [{"kl_estimator": e, "kl_input_bound": 0.1, "kl_gradient": "times-ratio", "beta": 0.5} for e in KL]
    + [{"kl_estimator": e, "kl_output_bound": 0.01, "kl_against": "sampler", "kl_gradient": "score"} for e in KL]
    + [{"kl_gradient": "times-ratio", "ratio": "sequence", "log_ratio_bound": 0.01}],
    "advantages": [{"advantage_mean": m, "advantage_std": s} for m in ADVANTAGE_MEAN for s in ADVANTAGE_STD]
    + [{"advantage_whiten": w, "reward_kl": "after", "reward_kl_coef": 0.5, "advantage_clip": 0.8} for w in WHITEN]
    + [{"reward_kl": "before", "reward_kl_coef": 0.5, "reward_kl_estimator": e, "reward_shift": -0.3} for e in KL]
    + [{"reward_shift": 0.25, "reward_scale": -3.0, "reward_clip": 1.5}],
    "correction": [
        {"correction": c, "correction_bound": b, "correction_low": low, "correction_high": high, "gates": tuple(GATE)}
        for c in CORRECTION for b in BOUND for low, high in ((0.0, 0.0), (0.9, 1.1), (0.9, 0.0), (0.0, 1.0))
    ],
    "aggregation": [
        {"aggregation": a, "kl_aggregation": k, "entropy_coef": 0.1, "entropy_aggregation": "token-sum", "count_empty_rows": e}
        for a in AGGREGATION for k, e in (("same", True), ("token-mean", False))
    ] + [{"mask_truncated": True, "count_empty_rows": False, "layout": "sequence"}],
}  # fmt: skip


@pytest.mark.parametrize("table", ODD)
def test_the_formulas_of_every_row_of_every_table_are_true(table, policy, base, off_policy):
    for settings in ODD[table]:
        if settings.get("layout", base.layout) == base.layout:
            hold(policy, off_policy(replace(base, **settings)))


def test_a_group_of_one_and_equal_rewards_have_true_formulas(policy, base, off_policy):
    equal = tuple((row, function, 1.0) for row in range(8) for function in range(2))
    lonely = tuple((row, function, None) for row in range(1, 4) for function in range(2))
    for edits in (equal, lonely):
        for mean in ADVANTAGE_MEAN:
            for alone, std in (("zero", "unbiased"), ("reward", "none"), ("reward", "leave-one-out")):
                settings = {"advantage_mean": mean, "advantage_alone": alone, "advantage_std": std}
                hold(policy, off_policy(replace(base, edited_rewards=edits, **settings)))


def test_every_row_of_every_table_has_its_latex():
    assert set(formula_rows.BASELINE) == set(ADVANTAGE_MEAN) and set(formula_rows.SPREAD) == set(ADVANTAGE_STD)
    assert set(formula_rows.WHITENED) == set(WHITEN) and set(formula_rows.RATIO) == set(RATIO)
    assert set(formula_rows.KL) == set(formula_rows.KL_SLOPE) == set(formula_rows.KL_SUM) == set(KL)
    assert set(formula_rows.KL_GRADIENT) == set(formula_rows.KL_PULL) == set(KL_GRADIENT)
    assert set(formula_rows.SURROGATE) == set(SURROGATE) and set(formula_rows.PULL) <= set(SURROGATE)
    assert set(formula_rows.CORRECTION) == set(CORRECTION) - {"none"} and set(formula_rows.BOUND) == set(BOUND)
    assert set(formula_rows.GATE) == set(GATE) and set(formula_rows.AGGREGATION) == set(AGGREGATION)
