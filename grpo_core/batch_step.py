"""A batch file as a finished step: the same records as `grpo_step` returns, so that lessons and checks read both alike.

Ids, masks, log-probs and advantages are the file's own. The terms of the loss, the weights and d loss / d log-prob are what
`policy_loss` makes of them under the convention that `meta` names, or any other. What a file cannot hold is absent: there
is no rollout, no gradient of the weights and no update; hidden states only where a policy is given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .advantages import group_advantages
from .batch import Batch
from .compare import Evaluation, evaluate, trained
from .config import Recipe
from .convention import Convention, tuples
from .inputs import LossInputs, missing
from .logprobs import score_tokens
from .policy import Policy
from .presets import PRESETS, preset
from .rules import RULES, number, whole
from .types import Advantages, StepTrace, Update

IN_FILE = "(in the batch file)"
# What belongs to the batch and not to a convention: another value would be another batch.
FIXED = (
    "prompts", "group_size", "max_completion_length", "temperature", "top_p", "top_k", "seed", "reward_functions",
    "reward_weights", "edited_rewards", "updates", "learning_rate", "optimizer", "max_grad_norm", "layout",
)  # fmt: skip
OF_META = (*(f.name for f in fields(Convention)), "temperature", "top_p", "top_k")
_LOOSER = (
    ("group_size", "a whole number from 1", whole(1, 2**31)),
    ("max_completion_length", "a whole number from 1", whole(1, 2**31)),
    ("temperature", "above 0", number(0, 1e6, open_low=True)),
)


@dataclass(frozen=True, kw_only=True)
class BatchRecipe(Recipe):
    """A recipe whose rollout is a batch file: as many rows and tokens as it holds."""

    prompts: tuple[str, ...] = (IN_FILE,)
    updates: int = 1
    beta: float = 0.0

    rules: ClassVar = tuple(row for row in RULES if row[0] not in {name for name, _, _ in _LOOSER}) + _LOOSER
    max_rows: ClassVar = None


def recipe_of_batch(batch: Batch, preset: str | None = None) -> BatchRecipe:
    """The convention that this batch was trained under, as far as it says.

    It starts from `preset`, else `meta.preset`, else the defaults of `meta.framework` where a preset has that name, else
    GRPO's without a KL; what `meta` says of single settings goes on top. A guessed start that needs what the batch lacks is
    dropped. Raises ValueError where `preset` is not one.
    """
    inputs = inputs_of_batch(batch)
    for name in _starts(batch.meta, preset):
        recipe = _recipe(batch, inputs, name, said=name in (preset, batch.meta.get("preset")))
        if inputs is None or not missing(inputs, recipe) or preset:
            return recipe
    return recipe


def _starts(meta: Mapping[str, Any], given: str | None) -> list[str]:
    """Names of presets to start from, the first choice first."""
    if given is not None:
        return [preset(given).name]
    named = [str(meta.get("preset")), str(meta.get("framework")).lower(), "paper/grpo"]
    return [name for name in dict.fromkeys(named) if name in PRESETS]


def _recipe(batch: Batch, inputs: LossInputs | None, name: str, said: bool) -> BatchRecipe:
    """One preset's convention, with what the batch says of single settings. `said`: the preset was named, not guessed."""
    meta = {key: value for key, value in batch.meta.items() if value is not None}
    values = PRESETS[name].values() | {"preset": name}
    if not said:  # a guess adds no KL that nobody spoke of
        values |= {"reward_kl": "none", "beta": 0.0}
    values |= {key: tuples(meta[key]) for key in OF_META if key in meta}
    if "dual_clip" in meta and values["surrogate"] == "min-clip":
        values["surrogate"] = "dual-clip"
    if meta.get("kl_in") == "reward" and values["reward_kl"] == "none":
        values |= {"reward_kl": "before", "reward_kl_coef": values["beta"], "beta": 0.0}
    width = batch.trained_mask().shape[1] if inputs is None else inputs.max_completion_length or inputs.mask.shape[1]
    values |= {"layout": batch.layout, "group_size": _largest_group(inputs), "max_completion_length": max(1, width)}
    recipe = BatchRecipe.repaired(_usable(values))[0]
    assert isinstance(recipe, BatchRecipe)
    return recipe


def _usable(values: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that no setting can be; whole numbers as the settings' own kind."""
    kinds = {name: type(getattr(BatchRecipe, name)) for name in values}
    kept = {}
    for name, value in values.items():
        if kinds[name] in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                continue
            value = kinds[name](value)
        kept[name] = value
    return kept


def _largest_group(inputs: LossInputs | None) -> int:
    if inputs is None or inputs.group_ids is None or not len(inputs.group_ids):
        return 1
    return int(inputs.group_ids.unique(return_counts=True)[1].max())


def inputs_of_batch(batch: Batch) -> LossInputs | None:
    """What a loss needs of it, stored advantages first; None where it holds no policy log-probs and no logits.

    A split into micro-batches that is no split of the rows is left out.
    """
    plain = replace(batch, meta={key: value for key, value in batch.meta.items() if key != "micro_batches"})
    for candidate in (batch, plain):
        try:
            return replace(LossInputs.of_batch(candidate), stored_first=True)
        except (ValueError, IndexError, TypeError):
            continue
    return None


def trace_of_batch(
    batch: Batch, policy: Policy | None = None, preset: str | None = None, recipe: Recipe | None = None
) -> StepTrace:
    """The batch under `recipe`, else under `recipe_of_batch(batch, preset)`, as the records of a step.

    `policy` is the model that the batch belongs to: it scores the tokens where the file has neither policy log-probs nor
    logits, and brings the hidden states. `needs` of the result names what the loss lacks: there are no updates then. Raises
    ValueError where the policy does not know the batch's ids.
    """
    hidden = None
    if policy is not None:
        batch, hidden = _scored(batch, policy)
    recipe, inputs = recipe or recipe_of_batch(batch, preset), inputs_of_batch(batch)
    needs = ("policy_logprobs or logits",) if inputs is None else missing(inputs, recipe)
    got = evaluate(_known(inputs), recipe.convention()) if inputs is not None and not needs else None
    advantages = _advantages(batch, inputs, recipe)
    if inputs is not None:
        kept = trained(inputs, recipe)
        batch = batch if torch.equal(kept, batch.trained_mask()) else replace(batch, loss_mask=kept)
        batch = replace(batch, group_ids=inputs.group_ids, derived=inputs.derived)
    stored = _per_token(batch, batch.advantages)
    if stored is None:
        stored = advantages.advantages.unsqueeze(1).expand_as(batch.trained_mask())
    return StepTrace(
        recipe=recipe, rollout=None, batch=batch, advantages=advantages,
        token_advantages=stored if got is None else got.advantages,
        old_logprobs=inputs.old_logprobs if inputs else batch.old_logprobs,
        ref_logprobs=inputs.ref_logprobs if inputs else batch.ref_logprobs,
        ref_hidden=None, updates=() if got is None else (_update(got, hidden),), needs=needs,
    )  # fmt: skip


def _scored(batch: Batch, policy: Policy) -> tuple[Batch, Tensor]:
    """With the policy's own log-probs and entropy where the file has nothing to take them from; and its hidden states."""
    ids = batch.row_ids()
    if bool(((ids < 0) | (ids >= policy.vocab_size)).any()):
        raise ValueError(f"model: found a vocabulary of {policy.vocab_size}, the batch has ids from {ids.min()} to {ids.max()}")
    with torch.no_grad():
        scored = score_tokens(policy, batch, float(batch.meta.get("temperature") or 1.0))
    if batch.policy_logprobs is not None or batch.logits is not None:
        return batch, scored.hidden
    said = "policy_logprobs: scored now, by the model that was given"
    made = {"policy_logprobs": scored.logprobs, "derived": (*batch.derived, said)}
    return replace(batch, **made, entropy=scored.entropy if batch.entropy is None else batch.entropy), scored.hidden


def _known(inputs: LossInputs) -> LossInputs:
    """What this convention does not read and the batch does not have is NaN: whoever reads it all the same sees that."""
    nothing = torch.full_like(inputs.policy_logprobs, torch.nan)
    names = ("old_logprobs", "ref_logprobs", "entropy")
    return replace(inputs, **{name: nothing for name in names if getattr(inputs, name) is None})


def _update(got: Evaluation, hidden: Tensor | None) -> Update:
    """The loss and its gradient on the log-probs; of the weights nothing is known."""
    states = got.grad.new_zeros(0, 0) if hidden is None else hidden
    return Update(terms=got.terms, logprob_grad=got.grad, hidden=states, grad_norms={}, grad_norm=float("nan"), applied=False)


# ---- advantages ------------------------------------------------------------------------------------------------------------
def _advantages(batch: Batch, inputs: LossInputs | None, recipe: Recipe) -> Advantages:
    """Rewards, baselines and spreads in the recipe's convention; the advantages as stored, where they are.

    Without rewards there is no reward function and no row is judged; without groups every row is its own.
    """
    rows = len(batch.row_ids())
    rewards = inputs.rewards if inputs else None
    ids = inputs.group_ids if inputs and inputs.group_ids is not None else torch.arange(rows)
    given, weights = ([(None,)] * rows, (1.0,)) if inputs is None or rewards is None else (rewards, inputs.reward_weights)
    made = group_advantages(given, weights, ids, recipe.advantage_config())
    if rewards is None:
        made = replace(made, rewards=made.rewards[:, :0], missing=made.missing[:, :0], weights=made.weights[:0])
    stored = row_advantages(batch)
    return made if stored is None else replace(made, advantages=stored)


def row_advantages(batch: Batch) -> Float[Tensor, " B"] | None:
    """The stored advantage of each row; NaN where its trained tokens do not share one, None where none are stored."""
    if batch.advantages is None or batch.advantages.dim() == 1:
        return batch.advantages
    mask, values = batch.trained_mask(), batch.advantages
    first = values.gather(1, mask.long().argmax(1, keepdim=True))
    same = (values == first) | (values.isnan() & first.isnan()) | ~mask
    return torch.where(same.all(1), first.squeeze(1), torch.nan)


def differ_within_rows(batch: Batch) -> bool:
    """Whether a row's trained tokens have different stored advantages."""
    of_rows = row_advantages(batch)
    if batch.advantages is None or of_rows is None or batch.advantages.dim() == 1:
        return False
    mask = batch.trained_mask()
    alike = (batch.advantages.isnan() | ~mask).all(1)  # rows whose tokens are all NaN, or that train none
    return bool((of_rows.isnan() & ~alike).any())


def _per_token(batch: Batch, values: Tensor | None) -> Tensor | None:
    return values.unsqueeze(1).expand_as(batch.trained_mask()) if values is not None and values.dim() == 1 else values
