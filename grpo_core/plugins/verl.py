"""verl's policy loss and advantages under any convention (read from verl 0.9.1, verl/trainer/ppo/core_algos.py).

    # my_losses.py: every process of the run imports it under VERL_USE_EXTERNAL_MODULES=my_losses
    from grpo_core.plugins.verl import register
    register("paper/dr_grpo")

and in verl's settings

    actor_rollout_ref.actor.policy_loss.loss_mode=grpo_core:paper/dr_grpo
    algorithm.adv_estimator=grpo_core:paper/dr_grpo

Only the policy part comes from here. The KL and the entropy bonus are added by verl's actor (`use_kl_loss`, `entropy_coeff`),
the KL in the reward and the weights against the sampler by its trainer (`use_kl_in_reward`, `rollout_correction`), and verl's
own clip_ratio and loss_agg_mode do not reach the policy part. What a convention needs beyond that is refused by `register`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_adv_est, register_policy_loss

from ..advantages import batch_advantages
from ..aggregation import Totals
from ..convention import AdvantageConfig, Convention, LossConfig, part
from ..inputs import LossInputs, missing
from ..loss import policy_loss, totals_of
from ..metrics import summarize
from ..presets import preset
from ..step import detached

PREFIX = "grpo_core:"
INSTEAD = {  # what verl's hook is not given -> what to do
    "ref_logprobs": "set beta 0 and turn on verl's use_kl_loss",
    "sampler_logprobs": "set correction 'none' and turn on verl's rollout_correction",
    "entropy": "set entropy_coef 0 and use verl's entropy_coeff, and leave out the gate top-entropy",
    "rewards": "choose a surrogate that does not read them",
    "truncated": "set mask_truncated False",
}
UNKNOWN_DENOMINATOR = {  # aggregation -> what of it verl does not say
    "micro-token-mean": "the number of micro-batches",
    "micro-seq-mean-token-mean": "the number of micro-batches",
    "sum-over-width": "the width of the prompts",
}
BY_TOKENS = ("token-mean", "token-sum")  # no row is counted
LOGGED = ("clip_fraction", "ratio_mean", "ratio_min", "ratio_max")


def register(name: str, convention: Convention | None = None) -> str:
    """Makes a convention known to verl, as a policy loss and as an advantage estimator, both as "grpo_core:<name>"; returns
    that name.

    `convention`: default the preset `name`; any other has a `name` of your own. Raises ValueError in one line where verl
    has not what it needs, and where that name stands for another convention already.
    """
    convention = preset(name).convention() if convention is None else convention
    refused = "; ".join(_refusals(convention))
    if refused:
        raise ValueError(f"{name} in verl: {refused}")
    full, loss = PREFIX + name, PolicyLoss(part(LossConfig, convention))
    if POLICY_LOSS_REGISTRY.get(full, loss) != loss:  # verl would replace it; of a taken estimator it says so itself
        raise ValueError(f"{full}: found another policy loss of that name, allowed: a name per convention")
    register_adv_est(full)(GroupAdvantages(part(AdvantageConfig, convention)))
    register_policy_loss(full)(loss)
    return full


def _refusals(convention: Convention) -> Iterator[str]:
    """A clause per setting that verl cannot serve."""
    one = torch.zeros(1, 1)
    given = LossInputs(mask=one.bool(), policy_logprobs=one, old_logprobs=one, advantages=one)
    for field in missing(given, convention):
        yield f"{field}: found none at its policy loss; {INSTEAD[field]}"
    if convention.reward_kl != "none":
        yield f"reward_kl: found {convention.reward_kl!r}, allowed: 'none' (verl's use_kl_in_reward does it)"
    if convention.count_padding:
        yield "count_padding: found True, allowed: False (verl's advantages are 0 in the padding)"
    if convention.aggregation in UNKNOWN_DENOMINATOR:
        lacks = UNKNOWN_DENOMINATOR[convention.aggregation]
        yield f"aggregation: found {convention.aggregation!r}, which needs {lacks}; verl does not pass it on"
    if not convention.count_empty_rows and convention.aggregation not in BY_TOKENS:
        yield "count_empty_rows: found False, allowed: True (verl's global_batch_size counts every row)"


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss of verl's registry. Two of equal settings are equal: registering twice changes nothing."""

    config: LossConfig

    def __call__(
        self,
        old_log_prob: Float[Tensor, "B T"],
        log_prob: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        response_mask: Shaped[Tensor, "B T"],  # 1 = trained; bool or number
        loss_agg_mode: str = "token-mean",  # the convention's aggregation is used
        config: Any = None,  # verl's ActorConfig; only its global_batch_info is read
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """This micro-batch's share of the mini-batch's loss, times dp_size as verl wants it (its workers average gradients),
        and metrics of the trained tokens. Log-probs in nats. verl's weights against the sampler multiply each token's loss.
        """
        mask, info = response_mask.bool(), getattr(config, "global_batch_info", {})
        length = info.get("loss_scale_factor") or mask.shape[1]  # as in verl's agg_loss
        settings = replace(self.config, max_completion_length=length)
        nothing = torch.zeros_like(log_prob)
        totals = global_totals(totals_of(mask, settings), info)
        terms = policy_loss(log_prob, old_log_prob, nothing, advantages, mask, nothing, settings, totals)
        loss, numbers = terms.policy_loss, summarize(detached(terms), mask)
        if rollout_is_weights is not None:
            weights = torch.where(mask, rollout_is_weights, 0.0)
            loss = (terms.token_weight * terms.token_loss * weights).sum()
        return loss * info.get("dp_size", 1), {f"actor/grpo_core/{name}": numbers[name] for name in LOGGED}


def global_totals(own: Totals, info: dict[str, Any]) -> Totals:
    """The denominators of the mini-batch over all workers, by verl's `global_batch_info`; the micro-batch's own where it
    holds none. Raises ValueError where there are several workers and a number is missing, as verl's agg_loss does.
    """
    rows, tokens = info.get("global_batch_size"), info.get("batch_num_tokens")
    if info.get("dp_size", 1) > 1 and (rows is None or tokens is None):
        raise ValueError("global_batch_info: found no global_batch_size or batch_num_tokens, needed with dp_size above 1")
    return Totals(rows=own.rows if rows is None else rows, tokens=own.tokens if tokens is None else tokens)


@dataclass(frozen=True)
class GroupAdvantages:
    """An advantage estimator of verl's registry. Rows of one `index` (verl's uid) are one group; without it, each its own."""

    config: AdvantageConfig

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "B T"],
        response_mask: Shaped[Tensor, "B T"],
        index: Iterable[Any] | None = None,
        config: Any = None,
        **unread: Any,
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Advantages of the whole batch, 0 where masked, and once more in the place of verl's returns."""
        scores, mask = token_level_rewards.sum(1), response_mask.bool()
        numbered: dict[Any, int] = {}
        names = range(len(scores)) if index is None else index
        groups = torch.tensor([numbered.setdefault(name, len(numbered)) for name in names])
        nothing = torch.zeros(mask.shape)
        rewards = [(score,) for score in scores.tolist()]
        _, per_token = batch_advantages(rewards, (1.0,), groups, nothing, nothing, mask.cpu(), self.config)
        advantages = torch.where(mask, per_token.to(token_level_rewards), 0.0)
        return advantages, advantages
