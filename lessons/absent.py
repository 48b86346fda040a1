"""What a batch file does not hold: which displayed quantities are missing, what would bring them, and how that is said.

A step that was run here lacks nothing; every function answers "nothing" for it.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from grpo_core.types import LossTerms

from .components import text
from .quantities import QUANTITIES

if TYPE_CHECKING:
    from .lesson import Context

WEIGHTS, LOGITS, GROUPS = "model", "logits", "group_ids"
OF_WEIGHTS = (
    "grad_norm", "layer_norms", "logprobs_before", "logprobs_after", "logprob_change", "row_change", "exact_kl", "learning_rate"
)  # fmt: skip
OF_VOCABULARY = ("logits", "scaled_logits", "logprobs", "probs", "logit_grad", "rank")
OF_REWARDS = ("rewards", "reward_weights", "reward", "batch_mean")
OF_GROUPS = ("baseline", "scale", "group_mean", "group_std", "group_rows", "spread_rows", "spread_squares")
OF_KL = ("kl", "kl_loss", "k1", "k2", "k3", "abs", "kl_grad")
OF_ENTROPY = ("entropy", "entropy_loss", "entropy_threshold")
OF_LOSS = (
    *(f.name for f in fields(LossTerms) if f.name != "policy_logprobs"), "span_sum", "span_tokens", "row_log_ratio",
    "row_ratio", "kept_sum", "mean_advantage", "mean_logprob", "logprob_weight", "log_weight_sum", "moved_from_old",
    "moved_from_sampler", "entropy_threshold", "weighted_token_loss", "weighted_row_loss", "logprob_grad", "policy_grad",
    "kl_grad", "k1", "k2", "k3", "abs",
)  # fmt: skip
# Numbers that a token has whether or not the loss reads it.
OF_ANY_TOKEN = ("loss_mask", "labels")


def lacking(context: "Context", names: Iterable[str]) -> tuple[str, ...]:
    """What the file would have to hold for these quantities to be there; nothing where they are."""
    if not context.of_file:
        return ()
    return tuple(dict.fromkeys(need for name in names for need in _needs(context, name)))


def is_there(context: "Context", name: str, row: int | None, pos: int | None) -> bool:
    """Whether a quantity has a number at this place."""
    if not context.of_file:
        return True
    axes = QUANTITIES[name.partition("@")[0].partition(".")[0]].axes
    if axes == "BT" and row is not None and pos is not None:
        if context.column_of(pos) < 0 or not (name in OF_ANY_TOKEN or context.rows.is_trained(row, pos)):
            return False
    if axes == "V" and row is not None and pos is not None and (row, pos) != context.place:
        return context.distribution_at(row, pos) is not None
    return not lacking(context, (name,))


def _needs(context: "Context", name: str) -> tuple[str, ...]:
    plain, _, variant = name.partition("@")
    trace, batch = context.trace, context.trace.batch
    if plain in OF_WEIGHTS:
        return (WEIGHTS,)
    if plain in OF_VOCABULARY:
        gradient = trace.needs if plain == "logit_grad" else ()
        return gradient if context.distribution else (LOGITS,)
    if plain == "finish_reasons":
        return () if batch.finish_reasons is not None else (plain,)
    if plain == "kept_mass":
        return ("kept_mass",)
    if plain in ("sampler_logprobs", "sampler_probs"):
        return () if batch.sampler_logprobs is not None else ("sampler_logprobs",)
    if plain in ("old_logprobs", "ref_logprobs"):
        return () if getattr(trace, plain) is not None else (plain,)
    if plain == "policy_logprobs":
        return () if context.policy_logprobs is not None else trace.needs
    if plain in OF_REWARDS + OF_GROUPS or variant.count("/"):
        return _of_rewards(context, groups=plain not in OF_REWARDS)
    if plain in ("advantages", "token_advantages"):
        return _of_advantages(context, plain)
    return _of_loss(context, plain)


def _of_rewards(context: "Context", groups: bool) -> tuple[str, ...]:
    rewards = () if len(context.trace.advantages.weights) else ("rewards",)
    return rewards + ((GROUPS,) if groups and context.trace.batch.group_ids is None else ())


def _of_advantages(context: "Context", name: str) -> tuple[str, ...]:
    stored = context.trace.batch.advantages
    if stored is None:
        needs = _of_rewards(context, groups=True)
        return ("advantages", *needs) if needs else ()
    return ("token_advantages",) if name == "advantages" and context.own_advantages else ()


def _of_loss(context: "Context", name: str) -> tuple[str, ...]:
    trace = context.trace
    needs = trace.needs if name in OF_LOSS else ()
    if name in OF_KL and not needs:
        other = trace.batch.sampler_logprobs if context.recipe.kl_against == "sampler" else trace.ref_logprobs
        needs = () if other is not None else (f"{context.recipe.kl_against}_logprobs",)
    if name in OF_ENTROPY and not needs and trace.batch.entropy is None and trace.batch.logits is None:
        needs = ("entropy",)
    return needs


def words(context: "Context", needs: Iterable[str]) -> str:
    """What is needed, as it is said."""
    named = {WEIGHTS: "need_model", LOGITS: "need_logits", "kept_mass": "need_kept", GROUPS: "need_groups"}
    return ", ".join(context.label(named[need]) if need in named else f"`{need}`" for need in needs)


def said(context: "Context", names: Iterable[str]) -> list[dict[str, Any]]:
    """A sentence about what is missing of these quantities; nothing where nothing is."""
    needs = lacking(context, names)
    return [text(html=context.html(context.label("absent", needs=words(context, needs))))] if needs else []
