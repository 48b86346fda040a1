"""Checks on rewards: is every one a number, and is a missing one left out?"""

import torch
from torch import Tensor

from ..advantages import group_advantages
from .advantage_forms import configs, missing_rewards, recomputed, rewards_of, row_advantages, stated_config, weights_of
from .finding import Evidence, Finding
from .reading import rows_at


def reward_finite(evidence: Evidence) -> list[Finding]:
    """No reward is NaN or infinite; a missing one (None) is no fault where it is left out, and that is said."""
    batch = evidence.batch
    assert batch.rewards is not None
    missing, names = missing_rewards(evidence), batch.reward_names or tuple(map(str, range(batch.rewards.shape[1])))
    broken, findings = ~batch.rewards.isfinite() & ~missing, []
    if broken.any():
        row, function = broken.nonzero().tolist()[0]
        value = float(batch.rewards[row, function])
        findings.append(
            Finding(
                check="reward_finite", severity="error", quantity="rewards", rows=rows_at(broken),
                message=f"Row {row}, function {names[function]!r}: the reward is {value}; its whole group has no advantage.",
                fix="Return None where there is nothing to judge, a finite number otherwise.",
                expected={"rewards": "finite"} | _without(evidence, broken), found={f"rewards[{row}]": value},
            )
        )  # fmt: skip
    unjudged = rows_at(missing.all(1))
    if unjudged:
        spoiled = [row for row in unjudged if _group_is_nan(evidence, row)]
        rows, severity = (tuple(spoiled), "error") if spoiled else (unjudged, "info")
        said = "and the advantages of the whole group are NaN" if spoiled else "they count in no group and get advantage 0"
        findings.append(
            Finding(
                check="reward_finite", severity=severity, quantity="rewards", rows=rows,
                message=f"{len(rows)} rows have no reward at all: {said}.",
                fix="Leave such rows out of mean and spread, and give them advantage 0.",
                expected=_without(evidence, broken), found=stored_advantages(evidence),
            )
        )  # fmt: skip
    return findings


def _without(evidence: Evidence, broken: Tensor) -> dict:
    """The advantages with the broken rewards left out as if they were missing."""
    rewards = [[None if bad else v for v, bad in zip(row, gone, strict=True)]
               for row, gone in zip(rewards_of(evidence), broken.tolist(), strict=True)]  # fmt: skip
    if evidence.group_ids is None:
        return {}
    values = group_advantages(rewards, weights_of(evidence), evidence.group_ids, stated_config(evidence))
    return {"advantages": values.advantages}


def stored_advantages(evidence: Evidence) -> dict:
    return {} if evidence.batch.advantages is None else {"advantages": evidence.batch.advantages}


def _group_is_nan(evidence: Evidence, row: int) -> bool:
    ids, values = evidence.group_ids, evidence.batch.advantages
    return ids is not None and values is not None and bool(values[ids == ids[row]].isnan().all())


def reward_imputed(evidence: Evidence) -> list[Finding]:
    """A missing reward is not a reward of 0."""
    missing, stored = missing_rewards(evidence), row_advantages(evidence)
    if not missing.any() or stored is None or evidence.group_ids is None:
        return []
    left_out = recomputed(evidence)
    if left_out is None or torch.allclose(left_out, stored, rtol=1e-3, atol=1e-4, equal_nan=True):
        return []
    filled = [[0.0 if value is None else value for value in row] for row in rewards_of(evidence)]
    for config in configs(evidence):
        values = group_advantages(filled, weights_of(evidence), evidence.group_ids, config).advantages
        if torch.allclose(values.to(stored), stored, rtol=1e-3, atol=1e-4):
            rows, functions = rows_at(missing), sorted({place[1] for place in missing.nonzero().tolist()})
            return [
                Finding(
                    check="reward_imputed", severity="warning", quantity="rewards", rows=rows,
                    message=f"{len(rows)} rows lack a reward of function {functions}; the advantages count it as 0.",
                    fix="Leave the row out of mean and spread, and give it advantage 0.",
                    expected={"advantages": left_out}, found={"advantages": stored},
                )
            ]  # fmt: skip
    return []
