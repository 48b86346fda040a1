"""The tables of the loss once more, in plain Python numbers, written from the formulas.

A number may be complex. Its imaginary part then carries a derivative: f(x + ih) = f(x) + ih · f'(x) up to h², and with
h = 1e-200 that is exact to the last digit. The real part alone is what a detach leaves. Nothing is shared with grpo_core.
"""

import cmath
import math

H = 1e-200


# ---- numbers ---------------------------------------------------------------------------------------------------------------
def real(z) -> float:
    return z.real


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def clamp(z, low: float, high: float):
    """A constant outside the bounds: no derivative there."""
    return low if real(z) < low else high if real(z) > high else z


def smaller(left, right):
    return left if real(left) <= real(right) else right


def expm1(z):
    """exp(z) - 1 with the digits of a small z; the imaginary part is infinitesimal."""
    return complex(math.expm1(real(z)), math.exp(real(z)) * z.imag)


def mean(values):
    """Of real numbers or of complex ones."""
    values = list(values)
    return complex(math.fsum(v.real for v in values), math.fsum(v.imag for v in values)) / len(values)


# ---- the ratio: {column: log-prob difference} of a row's trained tokens -> {column: log-ratio} -----------------------------
def _segments(gaps):
    runs = []
    for column in sorted(gaps):
        if runs and runs[-1][-1] == column - 1:
            runs[-1].append(column)
        else:
            runs.append([column])
    return {column: mean(gaps[c] for c in run) for run in runs for column in run}


RATIO = {
    "token": lambda gaps: dict(gaps),
    "sequence": lambda gaps: dict.fromkeys(gaps, mean(gaps.values())),
    "sequence-token": lambda gaps: {t: real(mean(gaps.values())) + gap - real(gap) for t, gap in gaps.items()},
    "segment": _segments,
}


# ---- the surrogate: what is known of a token, and the settings -> its loss --------------------------------------------------
def _clipped(k, s):
    return clamp(k.ratio, 1 - s.clip_low, 1 + s.clip_high)


def _min_clip(k, s):
    return -smaller(k.ratio * k.a, _clipped(k, s) * k.a)


def _dual_clip(k, s):
    return smaller(_min_clip(k, s), s.dual_clip * -k.a) if k.a < 0 else _min_clip(k, s)


def _sapo(k, s):
    tau = s.sapo_temperatures[0 if k.a > 0 else 1]
    return -k.a * 4 / tau / (1 + cmath.exp(-tau * (k.ratio - 1)))


def kept_log(log, a, s):
    """GMPO's clip: at most exp(clip_high) where A > 0, at least exp(-clip_low) where A < 0."""
    if a > 0:
        return min(log, s.clip_high, key=real)
    return max(log, -s.clip_low, key=real) if a < 0 else 0.0


def _geometric_mean(k, s):
    return -k.a * cmath.exp(mean(kept_log(log, a, s) for log, a in k.row)) if k.trained else 0.0


def _vespo(k, s):
    power, rate = s.vespo_shape[:2] if k.a >= 0 else s.vespo_shape[2:]
    total = math.fsum(clamp(real(log), -20.0, 20.0) for log, _ in k.row)
    total = clamp(total, math.log(1e-8), 20.0)
    return -math.exp(total * power + rate * (1 - math.exp(total))) * k.a * k.p


def _two_way_kl(old: float, new: float) -> float:
    rest = math.log((1 - math.exp(old) + 1e-8) / (1 - math.exp(new) + 1e-8))
    return math.exp(old) * (old - new) + (1 - math.exp(old)) * rest


def moved_too_far(k, s) -> bool:
    """DPPO: the probability itself, or the KL of "this token or another", has moved too far in the advantage's direction."""
    if not k.trained:
        return False
    up = real(k.p) > k.old
    far = _two_way_kl(k.old, real(k.p)) if s.surrogate == "dppo-kl" else abs(math.exp(real(k.p)) - math.exp(k.old))
    return up and far > s.clip_high if k.a > 0 else real(k.p) < k.old and far > s.clip_low


def _dppo(k, s):
    return 0.0 if moved_too_far(k, s) else -min(real(k.ratio), s.dual_clip) * k.a * k.p


SURROGATE = {
    "none": lambda k, s: -k.ratio * k.a,
    "min-clip": _min_clip,
    "dual-clip": _dual_clip,
    "two-sided": lambda k, s: -smaller(clamp(k.ratio, 0.0, s.dual_clip) * k.a, _clipped(k, s) * k.a),
    "sapo": _sapo,
    "geometric-mean": _geometric_mean,
    "clip-cov": lambda k, s: 0.0 if k.drawn else _min_clip(k, s),
    "kl-cov": lambda k, s: -k.ratio * k.a + (s.cov_coef * k.log * sign(real(k.log)) if k.held else 0.0),
    "log-prob": lambda k, s: -k.a * k.p,
    "cispo": lambda k, s: -real(_clipped(k, s)) * k.a * k.p,
    "tis": lambda k, s: -min(real(k.ratio), 1.0) * k.a * k.p,
    "topr": lambda k, s: -(1.0 if k.reward > 0 else min(real(k.ratio), 1.0)) * k.a * k.p,
    "vespo": _vespo,
    "dppo-tv": _dppo,
    "dppo-kl": _dppo,
    "dppo-ratio": lambda k, s: 0.0 if moved_too_far(k, s) else -k.ratio * k.a,
    "quadratic": lambda k, s: s.quadratic_coef / 2 * k.log * k.log - k.a * k.p,
}


# ---- the KL ----------------------------------------------------------------------------------------------------------------
KL = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: expm1(-x) + x,
    "abs": lambda x: x * sign(real(x)),
}


def _k2_gradient(x):
    return x * x / 2 - real(x * x / 2)


# value v, x, log-prob p, the sampler's, ratio -> the same value (times a ratio) with the gradient that is wanted
KL_GRADIENT = {
    "plain": lambda v, x, k: v,
    "times-ratio": lambda v, x, k: v * k.ratio,
    "straight-through": lambda v, x, k: real(v) + _k2_gradient(x),
    "weighted-straight-through": lambda v, x, k: real(v) + min(real(k.ratio), 10.0) * _k2_gradient(x),
    "score": lambda v, x, k: v * cmath.exp(k.p - real(k.p)),
    "times-sampler-ratio": lambda v, x, k: v * cmath.exp(clamp(k.p - k.sampler, -80.0, 80.0)),
}

# ---- the weight against the sampler: log of old/sampler of a row's trained tokens -> one log-weight for token t -------------
CORRECTION = {
    "none": None,
    "token": lambda logs, t: logs[t],
    "sequence": lambda logs, t: math.fsum(logs.values()),
    "geometric": lambda logs, t: math.fsum(logs.values()) / len(logs),
}
BOUND = {
    "truncate": lambda w, low, high: min(max(w, low), high),
    "drop": lambda w, low, high: w if low <= w <= high else 0.0,
}


def quantile(values, q: float) -> float:
    """Linear between the two neighbours, as numpy and torch have it."""
    ordered, place = sorted(values), q * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


# row: its trained tokens; k: the token; batch_entropies: of all trained tokens
GATE = {
    "on-policy-rows": lambda k, row, entropies, s: k.a >= 0 or mean(o.old_policy - real(o.p) for o in row).real
    <= s.off_policy_threshold,
    "sampler-rows": lambda k, row, entropies, s: k.a >= 0 or mean(o.sampler - real(o.p) for o in row).real
    <= s.off_policy_threshold,
    "top-entropy": lambda k, row, entropies, s: k.entropy >= quantile(entropies, 1 - s.entropy_quantile),
}  # fmt: skip

# ---- how much a token weighs: n tokens in its row, c the counts of the step and of the micro-batch ---------------------------
AGGREGATION = {
    "seq-mean-token-mean": lambda n, c: 1 / c.rows / n,
    "token-mean": lambda n, c: 1 / c.tokens,
    "token-sum": lambda n, c: 1.0,
    "seq-mean-token-sum": lambda n, c: 1 / c.rows,
    "dr_grpo": lambda n, c: 1 / c.rows / c.max_length,
    "sum-over-width": lambda n, c: 1 / c.width,
    "micro-token-mean": lambda n, c: 1 / c.micro_tokens / c.micro_batches,
    "micro-seq-mean-token-mean": lambda n, c: 1 / c.micro_rows / n / c.micro_batches,
    "length-over-cells": lambda n, c: n / (c.rows * c.columns),
}
