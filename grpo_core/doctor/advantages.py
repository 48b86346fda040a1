"""Checks on advantages: do they sum to 0 in their group, are they possible at all, and do the rewards give them?"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..advantages import group_advantages
from .advantage_forms import (
    compares_within_groups,
    complete_groups,
    equal,
    follows_rewards,
    in_loss,
    is_sound,
    match,
    missing_rewards,
    recomputed,
    rewards_of,
    row_advantages,
    stated_config,
    under,
)  # fmt: skip
from .finding import Evidence, Finding
from .reading import groups_of, rows_at, tokens_at
from .whatif import right_loss


def _right(evidence: Evidence) -> dict:
    """The advantages under the stated convention, and the loss that they give."""
    values = recomputed(evidence)
    return {} if values is None else {"advantages": values} | right_loss(evidence, advantages=values)


def advantage_group_sum(evidence: Evidence) -> list[Finding]:
    """Where the group's own mean is the baseline, its advantages sum to 0 up to rounding."""
    stored = row_advantages(evidence)
    if stored is None or not compares_within_groups(evidence) or not in_loss(evidence):
        return []
    alone_is_reward = evidence.settings.convention.advantage_alone == "reward"
    wrong, sums = [], []
    for _, rows in complete_groups(evidence):
        members = stored[list(rows)].double()
        total, size = float(members.sum()), float(members.abs().sum())
        judged = len(rows) > 1 or not alone_is_reward
        if judged and total == total and not abs(total) <= 1e-3 * max(len(rows), size):  # undivided by a spread they are large
            wrong.append(rows)
            sums.append(total)
    if not wrong or is_sound(evidence):
        return []
    rows = tuple(sorted(row for of in wrong for row in of))
    return [
        Finding(
            check="advantage_group_sum", severity="error", quantity="advantages", rows=rows,
            message=f"The advantages of {len(wrong)} groups sum to {', '.join(f'{s:.4g}' for s in sums[:6])}, not to 0"
            f"{_named(evidence)}.",
            fix="Normalise over the rows that answer the same prompt, and over all of them.",
            expected={"group_sums": [0.0] * len(wrong)} | _right(evidence),
            found={"group_sums": sums, "advantages": stored},
        )
    ]  # fmt: skip


def _named(evidence: Evidence) -> str:
    """Where the stored advantages come from, as far as a known mistake gives them."""
    name = _mistake(evidence)
    return f": they are {name}" if name else ""


def _mistake(evidence: Evidence) -> str:
    """The known mistake that gives the stored advantages; "" where none does."""
    stored, keys, batch = row_advantages(evidence), evidence.group_ids, evidence.batch
    if stored is None or keys is None or batch.rewards is None:
        return ""
    config, size = stated_config(evidence), batch.meta.get("num_generations")
    whole = replace(config, advantage_mean="batch", advantage_std="batch")
    tries: list[tuple[str, Tensor]] = [("the normalisation over the whole batch", under(evidence, whole, keys))]
    if isinstance(size, int) and size > 1:
        windows = torch.arange(len(keys)) // size
        tries.append((f"those of windows of {size} consecutive rows", under(evidence, config, windows)))
    tries.append(("of the opposite sign", -under(evidence, config, keys)))
    filled = [[0.0 if value is None else value for value in row] for row in rewards_of(evidence)]
    tries.append(("those with missing rewards counted as 0", under(evidence, config, keys, filled)))
    for number in range(batch.rewards.shape[1] if batch.rewards.shape[1] > 1 else 0):
        weights = [float(other == number) for other in range(batch.rewards.shape[1])]
        tries.append((f"those of reward function {number} alone", _weighted(evidence, weights, keys)))
    if batch.reward_weights is not None:
        tries.append(("those of unweighted rewards", _weighted(evidence, [1.0] * batch.rewards.shape[1], keys)))
    return next((name for name, values in tries if equal(stored, values)), "")


def _weighted(evidence: Evidence, weights: list[float], keys: Tensor) -> Tensor:
    return group_advantages(rewards_of(evidence), weights, keys, stated_config(evidence)).advantages


def advantage_magnitude(evidence: Evidence) -> list[Finding]:
    """(r - mean) / unbiased std of G numbers cannot exceed (G - 1) / sqrt(G)."""
    stored, convention = row_advantages(evidence), evidence.settings.convention
    divided = convention.advantage_mean == "group" and convention.advantage_std in ("unbiased", "biased")
    if stored is None or not divided or not in_loss(evidence) or convention.advantage_whiten != "none":
        return []
    findings = []
    for group, rows in complete_groups(evidence):
        size = len(rows)
        limit = (size - 1) / math.sqrt(size) if convention.advantage_std == "unbiased" else math.sqrt(size - 1)
        largest = float(stored[list(rows)].nan_to_num(0.0).abs().max())
        if largest > limit + 0.01 and (evidence.batch.rewards is None or not is_sound(evidence)):
            findings.append(
                Finding(
                    check="advantage_magnitude", severity=_surely(evidence), quantity="advantages", rows=rows,
                    message=f"Group {group} has an advantage of {largest:.4g}; {size} rows allow at most {limit:.4g}.",
                    fix="Look for a group id that is too small, or rewards normalised twice.",
                    expected={"max": limit} | _right(evidence), found={"max": largest, "advantages": stored},
                )
            )  # fmt: skip
    return findings


def _surely(evidence: Evidence) -> str:
    """Without rewards, and unless somebody says that they are divided by a spread, large advantages may be meant."""
    return "error" if evidence.batch.rewards is not None or evidence.settings.get("advantage_std") else "warning"


def advantage_recompute(evidence: Evidence) -> list[Finding]:
    """The stored advantages are what the rewards give under the stated convention, or under any where none is stated."""
    stored, keys, batch = row_advantages(evidence), evidence.group_ids, evidence.batch
    if stored is None or keys is None or batch.rewards is None or not in_loss(evidence):
        return []
    if not batch.rewards.isfinite()[~missing_rewards(evidence)].all():
        return []  # `reward_finite`: nothing can be recomputed
    severity, said, rows = _disagreement(evidence, stored, keys)
    if not severity:
        return []
    return [
        Finding(
            check="advantage_recompute", severity=severity, quantity="advantages", rows=rows,
            message=f"The stored advantages are not what the rewards give: {said}.",
            fix="Subtract the mean of the rows that answer the same prompt, divide by their spread, once.",
            expected=_right(evidence), found={"advantages": stored},
        )
    ]  # fmt: skip


def _disagreement(evidence: Evidence, stored: Tensor, keys: Tensor) -> tuple[str, str, tuple[int, ...]]:
    """(severity, what is wrong, rows); "" where the stored advantages can be what they should."""
    values = recomputed(evidence)
    assert values is not None
    everything = tuple(range(len(stored)))
    if stored.isnan().any():
        return "error", f"{int(stored.isnan().sum())} are NaN", rows_at(stored.isnan())
    if match(evidence, stored, keys) is not None:
        return "", "", ()
    other = match(evidence, stored, keys, any_at_all=True)
    if other is not None:
        config = stated_config(evidence)
        return "error", (
            f"they fit mean {other.advantage_mean}, std {other.advantage_std}, eps {other.advantage_eps:g}; "
            f"stated is mean {config.advantage_mean}, std {config.advantage_std}, eps {config.advantage_eps:g}"
        ), everything  # fmt: skip
    if not compares_within_groups(evidence):
        return "", "", ()
    if mistake := _mistake(evidence):
        return "error", f"they are {mistake}", everything
    one_function = evidence.batch.rewards is not None and evidence.batch.rewards.shape[1] == 1
    crossed = tuple(row for _, rows in groups_of(evidence) if not follows_rewards(evidence, stored, rows) for row in rows)
    if crossed:
        said = f"in {len(crossed)} rows their order is not that of the group's rewards"
        return ("error" if one_function and "advantage_std" not in evidence.settings.said else "warning"), said, crossed
    if complete_groups(evidence) and one_function:
        return "warning", "they follow them, with a baseline or a scale that no known convention has", everything
    return "", "", ()


def advantage_row_constant(evidence: Evidence) -> list[Finding]:
    """One reward per completion is one advantage for all its tokens."""
    stored, mask = evidence.batch.advantages, evidence.batch.trained_mask()
    if stored is None or stored.dim() == 1 or evidence.trace is not None or not in_loss(evidence):
        return []
    first = stored.gather(1, mask.int().argmax(1, keepdim=True))
    wrong = mask & ((stored - first).abs() > 1e-5 * (1 + first.abs())) & stored.isfinite() & first.isfinite()
    if not wrong.any():
        return []
    rows, values = rows_at(wrong), recomputed(evidence)
    where_said = evidence.batch.meta.get("kl_in") == "loss" or evidence.batch.meta.get("beta") == 0
    severe = "error" if evidence.batch.rewards is not None and where_said else "warning"
    return [
        Finding(
            check="advantage_row_constant", severity=severe, quantity="advantages", rows=rows,
            tokens=tokens_at(evidence.batch, wrong),
            message=f"In {len(rows)} rows the advantage changes from token to token, by up to "
            f"{float((stored - first).abs()[wrong].max()):.4g}; the reward is one per row.",
            fix="Normalise along the group axis and give each row's value to all of its tokens.",
            expected={} if values is None else {"advantages": values}, found={"advantages": stored[list(rows)[:8]]},
        )
    ]  # fmt: skip
