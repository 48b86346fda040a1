"""Checks on rewards, groups and advantages."""

import math

import torch

from .finding import Evidence, Finding


def _groups(evidence: Evidence):
    """(group id, its valid rows) of the batch."""
    valid, ids = evidence.trace.advantages.valid, evidence.trace.batch.group_ids
    assert ids is not None
    for group in ids.unique().tolist():
        yield group, tuple(((ids == group) & valid).nonzero().flatten().tolist())


def reward_finite(evidence: Evidence) -> list[Finding]:
    """No reward is NaN or infinite; a missing one (None) is no fault, it is left out, and said."""
    advantages, names = evidence.trace.advantages, evidence.trace.rollout.reward_names
    broken = ~advantages.rewards.isfinite() & ~advantages.missing
    findings = []
    if broken.any():
        rows = tuple(sorted({row for row, _ in broken.nonzero().tolist()}))
        row, function = broken.nonzero().tolist()[0]
        value = float(advantages.rewards[row, function])
        findings.append(
            Finding(
                check="reward_finite", severity="error", quantity="rewards", rows=rows,
                message=f"Row {row}, function {names[function]!r}: the reward is {value}; its whole group has no advantage.",
                fix="Return None where there is nothing to judge, a finite number otherwise.",
                expected={"rewards": "finite"}, found={f"rewards[{row}]": str(value)},
            )
        )  # fmt: skip
    unjudged = (~advantages.valid).nonzero().flatten().tolist()
    if unjudged:
        findings.append(
            Finding(
                check="reward_finite", severity="info", quantity="rewards", rows=tuple(unjudged),
                message=f"{len(unjudged)} rows have no reward at all: they count in no group and get advantage 0.",
                fix="Type rewards into the table, or choose a prompt whose answer can be checked.",
            )
        )  # fmt: skip
    return findings


def _compares_within_groups(evidence: Evidence) -> bool:
    """Whether the convention's baseline is the group's; else a group is no more than a label."""
    return evidence.trace.recipe.advantage_mean in ("group", "leave-one-out")


def group_size_min(evidence: Evidence) -> list[Finding]:
    """A group has at least two rewarded rows: an advantage is a comparison."""
    if not _compares_within_groups(evidence):
        return []
    lonely = [rows for _, rows in _groups(evidence) if len(rows) == 1]
    if not lonely:
        return []
    gets = {"zero": "is 0", "reward": "is its reward as it stands"}[evidence.trace.recipe.advantage_alone]
    return [
        Finding(
            check="group_size_min", severity="error", quantity="group_ids", rows=tuple(rows[0] for rows in lonely),
            message=f"{len(lonely)} groups have one rewarded row: with nothing to compare with, its advantage {gets}.",
            fix="Sample at least two completions per prompt.", expected={"group_size": ">= 2"}, found={"group_size": 1},
        )
    ]  # fmt: skip


def advantage_group_sum(evidence: Evidence) -> list[Finding]:
    """Where the group's own mean is the baseline, its advantages sum to 0 up to rounding."""
    trace = evidence.trace
    if not _compares_within_groups(evidence) or trace.recipe.advantage_std == "leave-one-out":
        return []
    findings = []
    for group, rows in _groups(evidence):
        if len(rows) == 1 and trace.recipe.advantage_alone == "reward":
            continue
        members = trace.advantages.advantages[list(rows)].double()
        total, size = float(members.sum()), float(members.abs().sum())
        if not abs(total) <= 1e-3 * max(len(rows), size):  # undivided by a spread, advantages are as large as rewards
            findings.append(
                Finding(
                    check="advantage_group_sum", severity="error", quantity="advantages", rows=rows,
                    message=f"The advantages of group {group} sum to {total:.4g}, not to 0.",
                    fix="Normalise over the rows that answer the same prompt, and over all of them.",
                    expected={"sum": 0.0}, found={"sum": total},
                )
            )  # fmt: skip
    return findings


def advantage_magnitude(evidence: Evidence) -> list[Finding]:
    """(r - mean) / unbiased std of G numbers cannot exceed (G - 1) / sqrt(G)."""
    recipe, values = evidence.trace.recipe, evidence.trace.advantages.advantages
    if recipe.advantage_mean != "group" or recipe.advantage_std not in ("unbiased", "biased"):
        return []
    findings = []
    for group, rows in _groups(evidence):
        size = len(rows)
        if size < 2:
            continue
        limit = (size - 1) / math.sqrt(size) if recipe.advantage_std == "unbiased" else math.sqrt(size - 1)
        largest = float(values[list(rows)].abs().max())
        if not largest <= limit + 0.01:
            findings.append(
                Finding(
                    check="advantage_magnitude", severity="error", quantity="advantages", rows=rows,
                    message=f"Group {group} has an advantage of {largest:.4g}; {size} rows allow at most {limit:.4g}.",
                    fix="Look for a group id that is too small, or rewards normalised twice.",
                    expected={"max": limit}, found={"max": largest},
                )
            )  # fmt: skip
    return findings


def zero_std_groups(evidence: Evidence) -> list[Finding]:
    """Groups whose rewards are all equal teach nothing; that is right, and worth knowing."""
    advantages = evidence.trace.advantages
    if not _compares_within_groups(evidence):
        return []
    flat = [(group, rows) for group, rows in _groups(evidence) if len(rows) > 1 and bool(advantages.zero_std[rows[0]])]
    if not flat:
        return []
    count = len(list(_groups(evidence)))
    rewards = torch.stack([advantages.reward[rows[0]] for _, rows in flat])
    return [
        Finding(
            check="zero_std_groups", severity="info", quantity="group_std",
            rows=tuple(row for _, rows in flat for row in rows),
            message=f"{len(flat)} of {count} groups have equal rewards ({rewards[0]:.3g}): advantage 0, no policy gradient.",
            fix="Nothing is broken. Sample more, raise the temperature, or pick prompts of middling difficulty.",
        )
    ]  # fmt: skip
