"""Checks on groups: does every row stand in the group of its prompt, and is there something to compare it with?"""

import torch
from torch import Tensor

from ..advantages import group_advantages
from .advantage_forms import (
    compares_within_groups,
    match,
    recomputed,
    rewards_of,
    row_advantages,
    stated_config,
    total_rewards,
    unjudged,
    weights_of,
)  # fmt: skip
from .finding import Evidence, Finding
from .reading import column_ids, groups_of, knows_prompts, prompts_of, rows_at
from .reward_checks import stored_advantages
from .whatif import right_loss


def group_size_min(evidence: Evidence) -> list[Finding]:
    """A group has at least two rewarded rows: an advantage is a comparison."""
    stored, groups = row_advantages(evidence), list(groups_of(evidence))
    if not compares_within_groups(evidence) or all(len(rows) == 1 for _, rows in groups):
        return []  # one row per prompt throughout: the baseline is another than the group's
    alone = unjudged(evidence)
    several = (evidence.batch.meta.get("num_generations") or 2) > 1
    lonely, severity = [], "warning"
    for _, rows in groups:
        valid = [row for row in rows if row not in alone]
        if len(valid) != 1:
            continue
        row = valid[0]
        value = float("nan") if stored is None else float(stored[row])
        if len(rows) > 1 or value != value or not several or evidence.trace is not None:
            lonely, severity = [*lonely, row], "error"
        elif value == 0.0 and severity == "warning":
            lonely.append(row)  # the others may have been left out after they were compared
    if not lonely:
        return []
    return [
        Finding(
            check="group_size_min", severity=severity, quantity="group_ids", rows=tuple(lonely),
            message=f"{len(lonely)} groups have one rewarded row: there is nothing to compare it with, "
            f"its advantage is {'not stored' if stored is None else [round(float(stored[row]), 4) for row in lonely]}.",
            fix="Give such a row advantage 0 and leave its group out; sample at least two completions per prompt.",
            expected={"group_size": ">= 2"} | _recomputed(evidence), found={"group_size": 1} | stored_advantages(evidence),
        )
    ]  # fmt: skip


def _recomputed(evidence: Evidence) -> dict:
    values = recomputed(evidence)
    return {} if values is None else {"advantages": values}


def zero_std_groups(evidence: Evidence) -> list[Finding]:
    """Groups whose rewards are all equal teach nothing: right for some, a lost step where it is all of them. A spread of a
    few last digits is no spread: divided by it, rounding becomes an advantage."""
    totals, ids = total_rewards(evidence), evidence.group_ids
    if ids is None or not compares_within_groups(evidence):
        return []
    flat, rounding, count = [], [], 0
    for _, rows in groups_of(evidence):
        valid = [row for row in rows if row not in unjudged(evidence)]
        if len(valid) < 2:
            continue
        members, count = totals[valid], count + 1
        spread = float(members.max() - members.min())
        if spread == 0.0:
            flat.append(valid)
        elif spread < 1e-6 * float(members.abs().mean()):
            rounding.append(valid)
    return [*_rounding(evidence, rounding), *_flat(evidence, flat, count)]


def _flat(evidence: Evidence, flat: list[list[int]], count: int) -> list[Finding]:
    if not flat:
        return []
    batch = evidence.batch
    assert batch.rewards is not None
    spreads = batch.rewards.double().std(0).tolist() if len(batch.rewards) > 1 else []
    everywhere = len(flat) == count and evidence.trace is None
    zeros = torch.zeros(len(batch.rewards))
    return [
        Finding(
            check="zero_std_groups", severity="warning" if everywhere else "info", quantity="rewards",
            rows=tuple(row for rows in flat for row in rows),
            message=f"{len(flat)} of {count} groups have equal rewards ({float(total_rewards(evidence)[flat[0][0]]):.3g}): "
            "advantage 0, no policy gradient.",
            fix="Nothing is broken. Sample more, raise the temperature, or pick prompts of middling difficulty.",
            expected={"group_std": [0.0] * count} | ({"advantages": zeros} if everywhere else {}),
            found={"function_std": spreads},
        )
    ]  # fmt: skip


def _rounding(evidence: Evidence, groups: list[list[int]]) -> list[Finding]:
    if not groups:
        return []
    totals, rows = total_rewards(evidence), tuple(row for rows in groups for row in rows)
    assert totals is not None
    spread = max(float(totals[rows].max() - totals[rows].min()) for rows in groups)
    return [
        Finding(
            check="zero_std_groups", severity="warning", quantity="rewards", rows=rows,
            message=f"{len(groups)} groups have rewards that differ by at most {spread:.2g}: rounding, not a comparison.",
            fix="Round the totals, or treat a spread below 1e-6 of the mean as 0; then the advantages are 0.",
            expected={"advantages": [0.0] * len(rows)}, found=stored_advantages(evidence),
        )
    ]  # fmt: skip


def group_contiguity(evidence: Evidence) -> list[Finding]:
    """Where groups are cut as windows of `num_generations` rows, a window holds one prompt."""
    batch, size = evidence.batch, evidence.batch.meta["num_generations"]
    prompts = prompts_of(batch)
    if not isinstance(size, int) or size < 2 or len(prompts) % size or not knows_prompts(batch):
        return []
    keys = torch.tensor([prompts.index(prompt) for prompt in prompts]) if batch.group_ids is None else batch.group_ids
    windows = torch.arange(len(prompts)) // size
    mixed = [w for w in windows.unique().tolist() if len(keys[windows == w].unique()) > 1]
    stored = row_advantages(evidence)
    if not mixed or len(set(keys.tolist())) == len(keys):
        return []
    by_prompt, by_window = recomputed(evidence, keys), recomputed(evidence, windows)
    if stored is not None and by_prompt is not None and by_window is not None:
        if match(evidence, stored, keys) or not match(evidence, stored, windows):
            return []  # grouped by prompt after all, or in some other way
        severity = "error"
    elif batch.group_ids is None:
        severity = "warning"
    else:
        return []
    rows = tuple(row for row in range(len(prompts)) if int(windows[row]) in mixed)
    stride = int((keys[1:] == keys[0]).int().argmax()) + 1
    return [
        Finding(
            check="group_contiguity", severity=severity, quantity="group_ids" if batch.group_ids is not None else "prompt_ids",
            rows=rows,
            message=f"{len(mixed)} windows of {size} rows hold different prompts: rows of one prompt lie {stride} apart.",
            fix="Repeat each prompt num_generations times in a row, or group by id.",
            expected={} if by_prompt is None else {"advantages": by_prompt} | right_loss(evidence, advantages=by_prompt),
            found=stored_advantages(evidence) | {"stride": stride},
        )
    ]  # fmt: skip


def group_id_vs_prompt(evidence: Evidence) -> list[Finding]:
    """Rows of one group id answer one prompt, and a prompt's rows are not torn into several groups."""
    batch, ids = evidence.batch, evidence.batch.group_ids
    assert ids is not None
    prompts, size = prompts_of(batch), batch.meta.get("num_generations")
    if not knows_prompts(batch):
        return []
    mixed = [rows for _, rows in groups_of(evidence) if len({prompts[row] for row in rows}) > 1]
    groups: dict[tuple[int, ...], set[int]] = {}
    for prompt, group in zip(prompts, ids.tolist(), strict=True):
        groups.setdefault(prompt, set()).add(group)
    torn = []
    if isinstance(size, int) and size > 1:
        for prompt, of in groups.items():
            rows = [row for row, other in enumerate(prompts) if other == prompt] if len(of) > 1 else []
            torn += rows if len(rows) == size else []
    rows = tuple(sorted({row for of in mixed for row in of} | set(torn)))
    if not rows:
        return []
    table = {f"group {int(g)}": sorted({prompts.index(prompts[row]) for row in of}) for g, of in groups_of(evidence)}
    return [
        Finding(
            check="group_id_vs_prompt", severity="warning", quantity="group_ids", rows=rows,
            message=f"{len(mixed)} groups hold several prompts, {len(torn)} rows of one prompt stand in different groups.",
            fix="Give all completions of a prompt one id, made where they are sampled.",
            found={"first row with the group's prompts": table},
        )
    ]  # fmt: skip


def empty_completion_in_group(evidence: Evidence) -> list[Finding]:
    """A completion without a token still counts in its group's mean."""
    batch, pad = evidence.batch, evidence.batch.meta.get("pad_token_id")
    if batch.layout == "sequence":
        rest = batch.row_mask().sum(1) - torch.tensor([len(prompt) for prompt in prompts_of(batch)])
        empty = ~batch.row_completion_mask().any(1) & (rest <= 0) if batch.prompt_lengths is not None else rest < 0
    else:
        assert batch.completion_mask is not None
        filling = column_ids(batch) == pad if pad is not None and pad not in evidence.eos_ids else batch.completion_mask
        empty = ~batch.completion_mask.any(1) & filling.all(1)
    stored = row_advantages(evidence)
    if not empty.any() or (stored is not None and not stored[empty].any()):
        return []
    rows, keep = rows_at(empty), _without_rows(evidence, empty)
    return [
        Finding(
            check="empty_completion_in_group", severity="warning", quantity=mask_of(evidence), rows=rows,
            message=f"{len(rows)} rows have no completion token, and their rewards still move their group's mean.",
            fix="Leave such rows out of the group's mean and spread.",
            expected={} if keep is None else {"advantages": keep}, found=stored_advantages(evidence),
        )
    ]  # fmt: skip


def _without_rows(evidence: Evidence, empty: Tensor) -> Tensor | None:
    """The advantages as if these rows had no reward."""
    if evidence.batch.rewards is None or evidence.group_ids is None:
        return None
    pairs = zip(rewards_of(evidence), empty.tolist(), strict=True)
    rewards = [[None] * len(row) if gone else row for row, gone in pairs]
    return group_advantages(rewards, weights_of(evidence), evidence.group_ids, stated_config(evidence)).advantages


def mask_of(evidence: Evidence) -> str:
    return "completion_mask" if evidence.batch.layout == "prompt_completion" else "response_mask"
