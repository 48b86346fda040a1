"""The loss and the advantages once more, in plain Python: loops over numbers, fp64, written from the formulas.

Nothing is shared with grpo_core, not even the tables. `None` stands for a masked slot or a missing reward.
"""

import math

CHOICES = {
    "ratio": ("token", "sequence"),
    "surrogate": ("min-clip", "dual-clip", "none"),
    "aggregation": ("seq-mean-token-mean", "token-mean", "dr_grpo", "seq-mean-token-sum", "token-sum"),
    "kl_estimator": ("k1", "k2", "k3", "abs"),
    "advantage_mean": ("group", "leave-one-out", "batch", "none"),
    "advantage_std": ("unbiased", "biased", "none", "batch", "leave-one-out"),
}


def objective(ratio: float, advantage: float, s) -> tuple[float, float, bool]:
    """What is maximised at one token, its slope in the ratio, and whether clipping took the slope away."""
    low, high = 1 - s.clip_low, 1 + s.clip_high
    if s.surrogate == "none":
        return ratio * advantage, advantage, False
    inside = min(max(ratio, low), high)
    value = min(ratio * advantage, inside * advantage)
    clipped = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
    if s.surrogate == "dual-clip" and advantage < 0 and value < s.dual_clip * advantage:
        value, clipped = s.dual_clip * advantage, True
    return value, 0.0 if clipped else advantage, clipped


def kl(estimator: str, policy: float, ref: float) -> tuple[float, float]:
    """The estimate and its slope in the policy's log-prob."""
    x = policy - ref
    if estimator == "k1":
        return x, 1.0
    if estimator == "k2":
        return x * x / 2, x
    if estimator == "abs":
        return abs(x), float((x > 0) - (x < 0))
    return math.exp(-x) + x - 1, 1 - math.exp(-x)


def weight(aggregation: str, row_tokens: int, all_tokens: int, rows: int, max_length: int) -> float:
    return {
        "seq-mean-token-mean": 1 / rows / row_tokens,
        "token-mean": 1 / all_tokens,
        "dr_grpo": 1 / rows / max_length,
        "seq-mean-token-sum": 1 / rows,
        "token-sum": 1.0,
    }[aggregation]


def slow_loss(policy, old, ref, entropy, advantages, mask, s) -> dict:
    """Loss, its three parts, and the gradient [B][T], of lists of lists; `s` is a LossConfig."""
    rows, all_tokens = len(mask), sum(map(sum, mask))
    parts = {"policy": 0.0, "kl": 0.0, "entropy": 0.0, "clipped": 0}
    gradient = [[0.0] * len(row) for row in mask]
    for i in range(rows):
        columns = [t for t, trained in enumerate(mask[i]) if trained]
        if not columns:
            continue
        w = weight(s.aggregation, len(columns), all_tokens, rows, s.max_completion_length)
        gaps = {t: policy[i][t] - old[i][t] for t in columns}
        mean = math.fsum(gaps.values()) / len(columns)
        for t in columns:
            ratio = math.exp(mean if s.ratio == "sequence" else gaps[t])
            value, slope, clipped = objective(ratio, advantages[i], s)
            divergence, kl_slope = kl(s.kl_estimator, policy[i][t], ref[i][t])
            parts["policy"] -= w * value
            parts["kl"] += w * divergence
            parts["entropy"] += w * entropy[i][t]
            parts["clipped"] += clipped
            gradient[i][t] += w * s.beta * kl_slope
            moved = columns if s.ratio == "sequence" else [t]
            for column in moved:
                gradient[i][column] -= w * slope * ratio / len(moved)
    total = parts["policy"] + s.beta * parts["kl"] - s.entropy_coef * parts["entropy"]
    return {"loss": total, "gradient": gradient} | parts


def spread(values, correction: int) -> float:
    if len(values) <= correction or all(value == values[0] for value in values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - correction))


def slow_advantages(rewards, weights, groups, mean: str, std: str, eps: float) -> list[float]:
    """Advantages of rewards [B][R]; None is a missing reward."""
    rows = range(len(rewards))
    total = {
        i: math.fsum(w * r for w, r in zip(weights, rewards[i], strict=True) if r is not None)
        for i in rows
        if any(r is not None for r in rewards[i])
    }
    result = [0.0] * len(rewards)
    for i, own in total.items():
        group = [value for j, value in total.items() if groups[j] == groups[i]]
        others = [value for j, value in total.items() if groups[j] == groups[i] and j != i]
        everyone = list(total.values())
        if mean in ("group", "leave-one-out") and all(value == own for value in group):
            continue  # equal rewards: nothing to learn, whatever the rounding says
        baseline = {
            "group": math.fsum(group) / len(group), "batch": math.fsum(everyone) / len(everyone), "none": 0.0,
            "leave-one-out": math.fsum(others) / len(others) if others else own,
        }[mean]  # fmt: skip
        divisor = {
            "unbiased": spread(group, 1), "biased": spread(group, 0), "batch": spread(everyone, 1),
            "leave-one-out": spread(others, 1), "none": 0.0,
        }[std]  # fmt: skip
        result[i] = (own - baseline) / (divisor + eps if divisor else 1.0)
    return result
