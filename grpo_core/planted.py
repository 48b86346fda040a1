"""The table of exhibits: a sound batch, one known fault put in, and the public report of somebody who had it.

The museum shows all of them; those with an `example` are also what the Debug page offers to try. What an exhibit turns red is
nowhere written: the checks say it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .batch import Batch
from .config import Recipe
from .faults import groups, masks, printed, scores
from .policy import Policy

TWO, UNEVEN = {"updates": 2}, {"prompts": ("What is 4 + 5?", "Compute 87 - 39 for me.")}  # the built-in model finds one hard


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One known bug, or something that only looks like one."""

    slug: str  # by what somebody would notice
    kind: str  # A to L, the kind of fault
    reports: tuple[str, ...]  # repository#number, where people met it
    plant: Callable[..., Batch] | None = None  # None: nothing is wrong, it only looks so
    scores: bool = False  # `plant` also takes the policy and the reference
    update: int = 0  # of the step
    needs: tuple[str, ...] = ()  # names in NEEDS: what the step must have for the fault to show
    explained_by: str = ""  # the check that says why what looks broken is right
    settings: Mapping[str, Any] = field(default_factory=dict)  # with these on top of the defaults a step has it
    example: str = ""  # its name on the Debug page

    def lacks(self, batch: Batch) -> str:
        """The first of its needs that this batch does not meet, or ""."""
        return next((need for need in self.needs if not NEEDS[need](batch)), "")

    def planted(self, batch: Batch, policy: Policy, reference: Policy) -> Batch:
        """The batch with the fault in it."""
        if self.plant is None:
            return batch
        return self.plant(batch, policy, reference) if self.scores else self.plant(batch)

    def recipe(self, recipe: Recipe) -> Recipe:
        """A recipe of the same model that can carry it."""
        return replace(Recipe(model=recipe.model), **self.settings)


# ---- what a step must have ------------------------------------------------------------------------------------------------
def _has_groups(batch: Batch) -> bool:
    """Two groups with rewards at least, so that there is something to mix."""
    known = batch.group_ids is not None and batch.rewards is not None and batch.advantages is not None
    return known and batch.group_ids is not None and len(batch.group_ids.unique()) > 1


def _is_uneven(batch: Batch) -> bool:
    """The groups' mean rewards differ: some question is easier than another."""
    if not _has_groups(batch) or batch.rewards is None or batch.group_ids is None:
        return False
    weights = torch.ones(batch.rewards.shape[1]) if batch.reward_weights is None else batch.reward_weights
    totals = (batch.rewards.nan_to_num(0.0) * weights).sum(1)
    means = [float(totals[batch.group_ids == group].mean()) for group in batch.group_ids.unique()]
    return max(means) - min(means) > 0.1


def _has_siblings(batch: Batch) -> bool:
    ids = batch.group_ids
    return ids is not None and batch.rewards is not None and int((ids == ids[-1]).sum()) > 1


def _ends(batch: Batch) -> bool:
    ends = torch.tensor([int(end) for end in batch.meta.get("eos_token_ids") or ()])
    return bool((torch.isin(batch.row_ids()[:, batch.token_positions()], ends) & batch.trained_mask()).any())


def _has_padding(batch: Batch) -> bool:
    """A row ends before the widest does."""
    mask = batch.trained_mask()
    return bool((mask.any(1) & ~mask[:, -1]).any())


def _has_lengths(batch: Batch) -> bool:
    return len(batch.trained_mask().sum(1).unique()) > 1


def _is_mean_of_means(batch: Batch) -> bool:
    return batch.meta.get("aggregation") == "seq-mean-token-mean" and _has_lengths(batch)


def _has_long_prompts(batch: Batch) -> bool:
    return int(batch.row_mask().sum(1).min()) > 4


NEEDS: dict[str, Callable[[Batch], bool]] = {
    "groups": _has_groups, "uneven": _is_uneven,
    "siblings": _has_siblings, "end": _ends, "padding": _has_padding, "lengths": _has_lengths,
    "row_mean": _is_mean_of_means, "prompts": _has_long_prompts,
    "token_mean": lambda batch: batch.meta.get("aggregation") == "token-mean" and _has_lengths(batch),
    "temperature": lambda batch: float(batch.meta.get("temperature") or 1.0) != 1.0,
    "cut": lambda batch: float(batch.meta.get("top_p") or 1.0) < 1.0 or int(batch.meta.get("top_k") or 0) > 0,
    "kl": lambda batch: bool(batch.meta.get("beta")) and batch.meta.get("kl_in") == "loss",
    "k3": lambda batch: batch.meta.get("kl_estimator") == "k3",
    "moved": lambda batch: bool(batch.meta.get("updates_since_sampling")),
    "loss_zero": lambda batch: abs(float(batch.reported["loss"])) < 1e-6,
    "loss_below_zero": lambda batch: float(batch.reported["loss"]) < 0,
}  # fmt: skip

EXHIBITS = (
    Exhibit(slug="endless", kind="B", reports=("trl#4970",), plant=masks.eos_as_padding, needs=("end",), example="length"),
    Exhibit(slug="loss-zero", kind="H", reports=("open-r1#239", "trl#2703"), needs=("loss_zero",),
            explained_by="loss_zero_explain"),
    Exhibit(slug="flat-reward", kind="E", reports=("R1-V#67",), plant=groups.advantages_rolled, needs=("groups",),
            example="reward"),
    Exhibit(slug="half-clipped", kind="C", reports=("prime-rl#1525",), plant=scores.old_shifted, example="ratio"),
    Exhibit(slug="sanity-passed", kind="C", reports=("GRPO 101, grpo_loss_demo.py",), plant=scores.unshifted, scores=True),
    Exhibit(slug="cooler", kind="A", reports=("trl#3029",), plant=scores.temperature_missing, scores=True,
            needs=("temperature",), settings={"temperature": 0.6}),
    Exhibit(slug="one-fewer", kind="C", reports=("OpenRLHF#973", "RLHF-Baselines"), plant=masks.first_token_dropped),
    Exhibit(slug="loss-nan", kind="G", reports=("OpenRLHF#1240",), plant=scores.nan_under_mask, needs=("padding",)),
    Exhibit(slug="winners-lose", kind="E", reports=("slime#2230",), plant=groups.whole_batch, needs=("uneven",),
            settings=UNEVEN),
    Exhibit(slug="bits", kind="A", reports=("xtuner#1108",), plant=scores.old_rounded),
    Exhibit(slug="one-for-nothing", kind="E", reports=("OpenRLHF#980",), plant=groups.row_alone, needs=("siblings",)),
    Exhibit(slug="negative", kind="H", reports=("ms-swift#3579",), update=1, needs=("moved", "loss_below_zero"), settings=TWO,
            explained_by="loss_sign_explain"),
    Exhibit(slug="all-full", kind="B", reports=("MemGen#33",), plant=masks.masked_past_end, scores=True,
            needs=("end", "padding")),
    Exhibit(slug="no-pull", kind="F", reports=("open-instruct#534",), plant=printed.k1_in_loss, update=1,
            needs=("moved", "kl"), settings=TWO),
    Exhibit(slug="split", kind="D", reports=("open-instruct#1161",), plant=printed.own_denominators, needs=("token_mean",),
            settings={"aggregation": "token-mean"}),
    Exhibit(slug="time-out", kind="E", reports=("ms-swift#8123",), plant=groups.reward_missing, needs=("siblings",)),
    Exhibit(slug="noise", kind="A", reports=("trl#3500",), plant=scores.dropout_on, scores=True),
    Exhibit(slug="second-half", kind="C", reports=("trlx#509", "mlx-lm-lora#80"), plant=masks.mask_late),
    Exhibit(slug="one-sided", kind="A", reports=("trl#6789",), plant=scores.renormalised, scores=True, needs=("cut",),
            settings={"top_p": 0.8}),
    Exhibit(slug="never-clips", kind="H", reports=("minimind#775", "trl#2769"), explained_by="ratio_identically_one"),
    Exhibit(slug="weights-of-ten", kind="A", reports=("unsloth-zoo#870",), plant=scores.weights_summed),
    Exhibit(slug="spikes", kind="F", reports=("rlhf-book#489", "RLLoggingBoard"), plant=printed.k3_inverted, update=1,
            needs=("moved", "kl", "k3"), settings=TWO),
    Exhibit(slug="long-rows", kind="D", reports=("verl#593",), plant=printed.other_mean, needs=("row_mean",)),
    Exhibit(slug="long-prompts", kind="I", reports=("trl#3569",), plant=scores.prompt_cut, scores=True, needs=("prompts",)),
    Exhibit(slug="entropy", kind="G", reports=("Flash-RL#19",), plant=scores.marked_invalid, needs=("padding",)),
)  # fmt: skip
BY_SLUG = {exhibit.slug: exhibit for exhibit in EXHIBITS}
PLANTED: dict[str, Callable[[Batch], Batch]] = {
    exhibit.example: exhibit.plant for exhibit in EXHIBITS if exhibit.example and exhibit.plant
}
"""Those of the Debug page: answers that do not end, a reward that does not rise, a ratio that is not 1."""
assert all(need in NEEDS for exhibit in EXHIBITS for need in exhibit.needs)
