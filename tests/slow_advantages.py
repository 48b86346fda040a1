"""Rewards to advantages once more, in plain Python numbers. Nothing is shared with grpo_core."""

import math

CHOICES = {
    "advantage_mean": ("group", "leave-one-out", "batch", "none"),
    "advantage_std": ("unbiased", "biased", "none", "batch", "leave-one-out"),
    "advantage_whiten": ("none", "unbiased", "biased", "std"),
    "advantage_alone": ("zero", "reward"),
    "reward_kl": ("none", "before", "after"),
    "reward_kl_estimator": ("k1", "k2", "k3", "abs"),
}


def average(values) -> float:
    return math.fsum(values) / len(values)


def variance(values, lost: int) -> float:
    center = average(values)
    return math.fsum((value - center) ** 2 for value in values) / (len(values) - lost)


def spread(values, lost: int) -> float:
    if len(values) <= lost or all(value == values[0] for value in values):
        return 0.0
    return math.sqrt(variance(values, lost))


def bounded(value: float, limit: float) -> float:
    return max(-limit, min(limit, value)) if limit else value


def token_penalty(old: float, ref: float, s) -> float:
    x = old - ref
    estimate = {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x, "abs": abs(x)}[s.reward_kl_estimator]
    return s.reward_kl_coef * estimate


def slow_rewards(rewards, weights, penalties, s) -> dict[int, float]:
    """Row -> its reward, of the rows that have one."""
    total = {}
    for i, row in enumerate(rewards):
        if any(r is not None for r in row):
            value = math.fsum(w * r for w, r in zip(weights, row, strict=True) if r is not None)
            value = bounded((value + s.reward_shift) * s.reward_scale, s.reward_clip)
            total[i] = value - (penalties[i] if s.reward_kl == "before" else 0.0)
    return total


def slow_row_advantages(total: dict[int, float], groups, s) -> list[float]:
    result = [0.0] * len(groups)
    everyone = list(total.values())
    for i, own in total.items():
        group = [value for j, value in total.items() if groups[j] == groups[i]]
        others = [value for j, value in total.items() if groups[j] == groups[i] and j != i]
        if not others and s.advantage_alone == "reward":  # verl: mean 0 and std 1
            result[i] = own if s.advantage_std == "none" else own / (1 + s.advantage_eps)
            continue
        if s.advantage_mean in ("group", "leave-one-out") and all(value == own for value in group):
            continue  # equal rewards: nothing to learn, whatever the rounding says
        baseline = {
            "group": average(group), "batch": average(everyone), "none": 0.0,
            "leave-one-out": average(others) if others else own,
        }[s.advantage_mean]  # fmt: skip
        divisor = {
            "unbiased": spread(group, 1), "biased": spread(group, 0), "batch": spread(everyone, 1),
            "leave-one-out": spread(others, 1), "none": 0.0,
        }[s.advantage_std]  # fmt: skip
        result[i] = (own - baseline) / (divisor + s.advantage_eps if divisor else 1.0)
    return result


def whitened(values: list[float], kind: str) -> list[float]:
    if kind == "none" or not values or (len(values) == 1 and kind != "biased"):
        return values
    divisor = {
        "unbiased": lambda: math.sqrt(variance(values, 1) + 1e-8),
        "biased": lambda: math.sqrt(max(variance(values, 0), 1e-8)),
        "std": lambda: math.sqrt(variance(values, 1)) + 1e-5,
    }[kind]()
    center = average(values)
    return [(value - center) / divisor for value in values]


def slow_advantages(rewards, weights, groups, old, ref, mask, s) -> tuple[list[float], list[list[float]]]:
    """Advantages per row, and per token [B][T] (0.0 where masked), of rewards [B][R]; None is a missing reward."""
    kl = [
        [token_penalty(o, r, s) if m else 0.0 for o, r, m in zip(*row, strict=True)] for row in zip(old, ref, mask, strict=True)
    ]
    per_row = slow_row_advantages(slow_rewards(rewards, weights, [math.fsum(row) for row in kl], s), groups, s)
    places = [(i, t) for i, row in enumerate(mask) for t, trained in enumerate(row) if trained]
    to_go = {(i, t): math.fsum(kl[i][t:]) if s.reward_kl == "after" else 0.0 for i, t in places}
    values = whitened([per_row[i] - to_go[i, t] for i, t in places], s.advantage_whiten)
    per_token = [[0.0] * len(row) for row in mask]
    for (i, t), value in zip(places, values, strict=True):
        per_token[i][t] = bounded(value, s.advantage_clip)
    return per_row, per_token
