"""The loss once more, in plain Python: loops over numbers, the gradient by complex steps. See slow_tables.py.

Batches are lists of lists. A row without a trained token adds nothing, whatever the aggregation.
"""

import cmath
import math
from types import SimpleNamespace

import slow_tables as tables
from slow_tables import H, clamp, real


class Tie(Exception):
    """kl-cov's choice hangs on rounding: any of two tokens will do."""


FOUND_BY_SLOPE = ("min-clip", "dual-clip", "two-sided", "clip-cov")  # clipped where the ratio no longer moves the loss


def tokens_of(batch, policy, i: int, s) -> list:
    """Everything that is known of each cell of row i; padding has log-ratio 0 and, if it is counted, its advantage."""
    columns = [t for t, trained in enumerate(batch.mask[i]) if trained]
    denominator = {"old": batch.old, "sampler": batch.sampler}[s.ratio_against]
    gaps = {t: policy[i][t] - denominator[i][t] for t in columns}
    logs = (
        {t: clamp(log, -s.log_ratio_bound, s.log_ratio_bound) for t, log in tables.RATIO[s.ratio](gaps).items()} if gaps else {}
    )
    row = [(logs[t], batch.advantages[i][t]) for t in columns]
    cells = []
    for t, trained in enumerate(batch.mask[i]):
        if not trained and not s.count_padding:
            continue
        log = logs.get(t, 0.0)
        values = {name: getattr(batch, name)[i][t] if trained else 0.0 for name in ("ref", "sampler", "entropy")}
        cells.append(
            SimpleNamespace(
                i=i, t=t, trained=trained, a=batch.advantages[i][t], log=log, ratio=cmath.exp(log), row=row, **values,
                p=policy[i][t] if trained else 0.0, old=denominator[i][t] if trained else 0.0,
                old_policy=batch.old[i][t] if trained else 0.0, reward=batch.rewards[i], drawn=False, held=False,
            )
        )  # fmt: skip
    return cells


def choose(cells, s, shuffle) -> None:
    """Marks the tokens that clip-cov draws and kl-cov holds. `shuffle(n)` is the order in which n candidates are drawn."""
    trained = [k for k in cells if k.trained]
    if not trained or s.surrogate not in ("clip-cov", "kl-cov"):
        return
    a, p = (tables.mean(v).real for v in ([k.a for k in trained], [real(k.p) for k in trained]))
    covariance = {id(k): (k.a - a) * (real(k.p) - p) for k in trained}
    share = max(1, int(len(trained) * s.cov_fraction))
    if s.surrogate == "kl-cov":
        falling = sorted(trained, key=lambda k: -covariance[id(k)])
        if share < len(falling) and covariance[id(falling[share - 1])] - covariance[id(falling[share])] < 1e-9:
            raise Tie
        for k in falling[:share]:
            k.held = True
        return
    low, high = s.cov_bounds
    free = [k for k in trained if low < covariance[id(k)] < high and not clipped(k, s)]
    for place in shuffle(len(free))[:share]:
        free[place].drawn = True


def clipped(k, s) -> bool:
    """Whether clipping takes the token's gradient away, by moving the ratio a little."""
    if s.surrogate == "geometric-mean":
        return k.trained and k.a != 0 and tables.kept_log(k.log, k.a, s) != k.log
    if s.surrogate.startswith("dppo"):
        return tables.moved_too_far(k, s)
    if s.surrogate not in FOUND_BY_SLOPE:
        return False
    log = complex(real(k.log), H)
    nudged = SimpleNamespace(**vars(k) | {"log": log, "ratio": cmath.exp(log)})
    return k.drawn or k.a != 0 and tables.SURROGATE[s.surrogate](nudged, s).imag == 0


def correction(k, row, entropies, s) -> float:
    if not k.trained:
        return 1.0
    weight = 1.0
    if s.correction != "none":
        logs = {o.t: o.old_policy - o.sampler for o in row}
        weight = math.exp(clamp(tables.CORRECTION[s.correction](logs, k.t), -80.0, 80.0))
        weight = tables.BOUND[s.correction_bound](weight, s.correction_low, s.correction_high or math.inf)
    return weight if all(tables.GATE[gate](k, row, entropies, s) for gate in s.gates) else 0.0


def divergence(k, s):
    x = clamp(k.p - {"ref": k.ref, "sampler": k.sampler}[s.kl_against], -s.kl_input_bound, s.kl_input_bound)
    value, limit = tables.KL[s.kl_estimator](x), s.kl_output_bound or math.inf
    if s.kl_gradient.endswith("straight-through"):  # the gradient is another's: only the value is bounded
        return tables.KL_GRADIENT[s.kl_gradient](clamp(value, -limit, limit), x, k)
    return clamp(tables.KL_GRADIENT[s.kl_gradient](value, x, k), -limit, limit)


def counts(batch, rows, s):
    filled = sum(map(any, batch.mask))
    return SimpleNamespace(
        rows=len(batch.mask) if s.count_empty_rows else max(filled, 1), tokens=sum(map(sum, batch.mask)),
        max_length=s.max_completion_length, width=batch.width or len(batch.mask[0]), micro_batches=len(batch.splits),
        micro_tokens=sum(sum(batch.mask[i]) for i in rows), micro_rows=len(rows), columns=len(batch.mask[0]),
    )  # fmt: skip


def forward(batch, policy, rows, s, shuffle) -> dict:
    """One micro-batch of the step: its share of the loss, and every cell's values."""
    by_row = {i: tokens_of(batch, policy, i, s) for i in rows}
    cells = [k for row in by_row.values() for k in row]
    choose(cells, s, shuffle)
    entropies, count = [k.entropy for k in cells if k.trained], counts(batch, rows, s)
    parts = {"policy": 0.0, "kl": 0.0, "entropy": 0.0}
    for k in cells:
        row = [o for o in by_row[k.i] if o.trained]
        names = (s.aggregation, s.kl_aggregation, s.entropy_aggregation)
        names = [s.aggregation if name == "same" else name for name in names]
        weights = [
            tables.AGGREGATION[n](len(row), count) if row and (k.trained or n == "length-over-cells") else 0.0 for n in names
        ]
        k.weight, k.correction = weights[0], correction(k, row, entropies, s)
        k.loss, k.kl, k.clipped = tables.SURROGATE[s.surrogate](k, s) * k.correction, divergence(k, s), clipped(k, s)
        for name, weight, value in zip(parts, weights, (k.loss, k.kl, k.entropy), strict=True):
            parts[name] += weight * value
    total = parts["policy"] + s.beta * parts["kl"] - s.entropy_coef * parts["entropy"]
    return {"loss": total, "cells": cells} | parts


def slow_loss(batch, s, shuffle=lambda n: list(range(n))) -> dict:
    """Loss, its three parts, the gradient [B][T] and every cell, of a namespace of lists; `s` is a LossConfig.

    The batch has policy, old, ref, sampler, entropy, advantages, mask [B][T], rewards [B], width and splits (lists of rows).
    """
    result = {"loss": 0.0, "policy": 0.0, "kl": 0.0, "entropy": 0.0, "cells": {}}
    gradient = [[0.0] * len(row) for row in batch.mask]
    for rows in batch.splits:
        plain = forward(batch, batch.policy, rows, s, shuffle)
        for name in ("loss", "policy", "kl", "entropy"):
            result[name] += real(plain[name])
        result["cells"] |= {(k.i, k.t): k for k in plain["cells"]}
        for i, t in ((k.i, k.t) for k in plain["cells"] if k.trained):
            moved = [list(row) for row in batch.policy]
            moved[i][t] += H * 1j
            gradient[i][t] = forward(batch, moved, rows, s, shuffle)["loss"].imag / H
    return result | {"gradient": gradient}
