"""The core's loss against slow.py, to 1e-12 in fp64: every row of every table, random masks, far-off ratios, micro-batches."""

import dataclasses
import itertools
import random
from types import SimpleNamespace

import pytest
import slow
import slow_tables
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from grpo_core import LossConfig, policy_loss
from grpo_core.aggregation import AGGREGATION
from grpo_core.correction import BOUND, CORRECTION, GATE
from grpo_core.kl import KL, KL_GRADIENT
from grpo_core.loss import RATIO, totals_of
from grpo_core.surrogate import SURROGATE

pytestmark = pytest.mark.usefixtures("fp64")

TOLERANCE = 1e-12
TABLES = {
    "RATIO": RATIO, "SURROGATE": SURROGATE, "AGGREGATION": AGGREGATION, "KL": KL, "KL_GRADIENT": KL_GRADIENT,
    "CORRECTION": CORRECTION, "BOUND": BOUND, "GATE": GATE,
}  # fmt: skip
TENSORS = ("policy", "old", "ref", "sampler", "entropy", "advantages", "rewards")
CELLS = {
    "ratio": "ratio", "token_loss": "loss", "kl": "kl", "correction": "correction", "token_weight": "weight",
    "is_clipped": "clipped",
}  # fmt: skip
ONE_BY_ONE = (
    "ratio",
    "aggregation",
    "kl_aggregation",
    "correction",
    "correction_bound",
    "gates",
    "ratio_against",
    "kl_against",
)


def test_the_reference_knows_every_row_of_every_table():
    assert {name: set(getattr(slow_tables, name)) for name in TABLES} == {name: set(rows) for name, rows in TABLES.items()}


# ---- what is drawn: hypothesis chooses a seed; numbers out of a generator lie on no threshold ------------------------------
def draw_batch(rng):
    """Log-probs below 0, three other policies near or far, advantages per row or per token, any mask, any split."""
    height, width, density = rng.randint(1, 4), rng.randint(1, 6), rng.choice([0.3, 0.8, 1.0])
    apart = {name: rng.choice([0.0, 0.3, 1.0, 6.0, 30.0]) for name in ("old", "ref", "sampler")}

    def cells(make):
        return [[make(i, t) for t in range(width)] for i in range(height)]

    policy = cells(lambda i, t: -4 * rng.random() - 1e-3)
    away = {
        name: cells(lambda i, t, far=far: -abs(policy[i][t] + far * rng.uniform(-1, 1)) if far else policy[i][t])
        for name, far in apart.items()
    }
    per_row, per_token = [0.0 if rng.random() < 0.2 else rng.uniform(-3, 3) for _ in range(height)], rng.random() < 0.3
    rows, parts = rng.sample(range(height), height), rng.randint(1, height)
    return SimpleNamespace(
        policy=policy, entropy=cells(lambda i, t: 3 * rng.random()), mask=cells(lambda i, t: rng.random() < density),
        advantages=cells(lambda i, t: rng.uniform(-3, 3) if per_token else per_row[i]),
        rewards=[rng.uniform(-1, 1) for _ in range(height)], width=rng.choice([0, width + 3]),
        splits=[sorted(rows[part::parts]) for part in range(parts)], **away,
    )  # fmt: skip


CHOICES = {
    "ratio": RATIO, "surrogate": SURROGATE, "aggregation": AGGREGATION, "kl_aggregation": ("same", *AGGREGATION),
    "entropy_aggregation": ("same", *AGGREGATION), "kl_estimator": KL, "kl_gradient": KL_GRADIENT, "correction": CORRECTION,
    "correction_bound": BOUND, "gates": [(), (), *itertools.combinations(GATE, 1), *itertools.combinations(GATE, 2)],
    "ratio_against": ("old", "old", "sampler"), "kl_against": ("ref", "ref", "sampler"),
    "log_ratio_bound": (0.31, 2.0, 20.0, 80.0), "kl_input_bound": (0.51, 20.0, 80.0), "kl_output_bound": (0.0, 0.11, 10.0),
    "count_empty_rows": (True, False), "count_padding": (True, False), "correction_low": (0.0, 0.47),
    "correction_high": (0.0, 2.03), "beta": (0.0, 0.3), "entropy_coef": (0.0, 0.2), "entropy_quantile": (0.125, 0.5, 1.0),
    "cov_fraction": (2e-4, 0.4), "max_completion_length": range(1, 9), "cov_seed": range(4),
}  # fmt: skip


def draw_config(rng, **fixed) -> LossConfig:
    """A row of every table, and constants that all of them feel."""

    def number(low, high):
        return round(rng.uniform(low, high), 6)

    return LossConfig(
        clip_low=number(0, 1), clip_high=number(0, 2), dual_clip=number(1.01, rng.choice([1.5, 6])), cov_coef=number(0.1, 2),
        sapo_temperatures=(number(0.2, 5), number(0.2, 5)), quadratic_coef=number(0, 1), off_policy_threshold=number(0, 1),
        vespo_shape=tuple(number(0.01, rng.choice([0.3, 4])) for _ in range(4)), cov_bounds=(number(-1, 0.1), number(0.2, 5)),
        **{name: rng.choice(list(rows)) for name, rows in CHOICES.items()} | fixed,
    )  # fmt: skip


# ---- the core on the same batch ---------------------------------------------------------------------------------------------
def run_core(batch, config):
    """The step's terms, cells in their places and sums added up, and the gradient."""
    given = {name: torch.tensor(getattr(batch, name)) for name in TENSORS}
    mask, leaf = torch.tensor(batch.mask), given["policy"].requires_grad_()
    totals = totals_of(mask, config, batch.width or mask.shape[1], len(batch.splits))
    pieces = []
    for rows in batch.splits:
        policy, old, ref, sampler, entropy, advantages, rewards = (given[name][rows] for name in TENSORS)
        pieces.append(policy_loss(policy, old, ref, advantages, mask[rows], entropy, config, totals, sampler, rewards))
    (grad,) = torch.autograd.grad(sum(terms.loss for terms in pieces), leaf)
    order = torch.tensor([row for rows in batch.splits for row in rows]).argsort()
    joined = {}
    for field in dataclasses.fields(pieces[0]):
        values = [getattr(terms, field.name).detach() for terms in pieces]
        joined[field.name] = torch.cat(values)[order] if values[0].dim() else torch.stack(values).sum()
    return SimpleNamespace(**joined), grad


def table_of(expected, name, like):
    values = torch.zeros_like(like)
    for (i, t), cell in expected["cells"].items():
        values[i, t] = getattr(cell, name).real
    return values


def assert_cells(terms, expected, counted):
    for field, name in CELLS.items():
        ours = getattr(terms, field).double()
        table = table_of(expected, name, ours)
        assert_close(torch.where(counted, ours, table), table, table.abs().max(), name)


def assert_close(ours, expected, scale, name):
    gap = float((ours - expected).abs().max())
    assert gap <= TOLERANCE * max(1.0, float(scale)), (name, gap, scale)


def compare(batch, config):
    def drawn(count):  # the tokens that clip-cov draws are given
        return torch.randperm(count, generator=torch.Generator().manual_seed(config.cov_seed)).tolist()

    try:
        expected = slow.slow_loss(batch, config, drawn)
    except slow.Tie:
        reject()
    terms, grad = run_core(batch, config)
    assert_cells(terms, expected, torch.tensor(batch.mask) | config.count_padding)
    sizes = {
        "policy": (terms.token_weight * terms.token_loss).abs().sum(), "kl": (terms.kl_weight * terms.kl).abs().sum(),
        "entropy": (terms.entropy_weight * terms.entropy).abs().sum(),
    }  # fmt: skip
    for name, size in sizes.items():
        assert_close(getattr(terms, f"{name}_loss"), expected[name], size, name)
    assert_close(terms.loss, expected["loss"], sum(sizes.values()), "loss")
    pull = terms.token_weight * terms.correction * (1 + terms.ratio) * (1 + torch.tensor(batch.advantages).abs())
    slope = terms.kl_weight * (50 + terms.kl.abs()) * (1 + terms.ratio)
    assert_close(grad, torch.tensor(expected["gradient"]), pull.sum() + slope.sum() + grad.abs().max(), "gradient")


def over_seeds(check, examples):
    """Runs `check` on that many generators."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32 - 1))
    def each(seed):
        check(random.Random(seed))

    each()


@pytest.mark.parametrize("surrogate", SURROGATE)
def test_loss_parts_and_gradient_equal_the_slow_ones(surrogate):
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, surrogate=surrogate)), 50)


@pytest.mark.parametrize("row", [(n, r) for n in ONE_BY_ONE for r in CHOICES[n]], ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_row_of_the_other_tables_equals_the_slow_one(row):
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, **dict([row]))), 12)


def test_vespos_weight_is_that_of_a_bounded_row():
    """Rows far off in both directions, with a weight that still shows it."""

    def check(rng):
        far = draw_batch(rng)
        far.old = [
            [p - step for p, step in zip(row, (20.0, -30.0, 9.0, -25.0, 30.0, -30.0), strict=False)] for row in far.policy
        ]
        fixed = {"surrogate": "vespo", "log_ratio_bound": 80.0, "ratio_against": "old", "correction": "none", "gates": ()}
        shape = tuple(rng.uniform(0.01, 0.1) for _ in range(4))
        compare(far, dataclasses.replace(draw_config(rng, **fixed), vespo_shape=shape))

    over_seeds(check, 20)


@pytest.mark.parametrize("gradient", KL_GRADIENT)
@pytest.mark.parametrize("estimator", KL)
def test_kl_and_its_gradient_equal_the_slow_ones(estimator, gradient):
    fixed = {"kl_estimator": estimator, "kl_gradient": gradient, "beta": 0.7, "surrogate": "min-clip"}
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, **fixed)), 12)


@pytest.mark.parametrize("surrogate", SURROGATE)
def test_counted_padding_equals_the_slow_one(surrogate):
    fixed = {"surrogate": surrogate, "aggregation": "length-over-cells", "count_padding": True}
    over_seeds(lambda rng: compare(draw_batch(rng), draw_config(rng, **fixed)), 12)
