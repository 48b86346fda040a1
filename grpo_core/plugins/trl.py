"""TRL's GRPOTrainer under any convention (read from TRL 1.16.0, trl/trainer/grpo_trainer.py).

    trainer = CoreGRPOTrainer(..., convention="verl/gspo")  # or a Convention; everything else as for GRPOTrainer

Sampling, rewards, forward passes and log-probs are TRL's; advantages and loss are `grpo_core`'s. The convention decides about
everything between rewards and loss; two of GRPOConfig's settings still matter: `beta` above 0 makes TRL load the reference,
`max_completion_length` is the constant of the aggregation `dr_grpo`. What TRL logs about the loss (clip_ratio, kl) it computes
by GRPOConfig; `grpo_core/…` stands beside it.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ..advantages import batch_advantages
from ..aggregation import Totals
from ..convention import AdvantageConfig, Convention, LossConfig, part
from ..inputs import LossInputs, missing
from ..loss import policy_loss
from ..metrics import summarize
from ..presets import preset
from ..splitting import detached
from ..types import LossTerms

OVERRIDDEN = (  # TRL's own parts, replaced or listened to below
    "_calculate_rewards", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_compute_loss",
)  # fmt: skip
UNREAD = (  # settings of GRPOConfig that the convention decides
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "scale_rewards", "use_bias_correction_kl",
    "top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef", "sapo_temperature_pos", "sapo_temperature_neg",
    "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max",
)  # fmt: skip
SHARES = ("loss", "policy_loss", "kl_loss", "entropy_loss")  # a micro-batch's part of the step's number


class CoreGRPOTrainer(GRPOTrainer):
    """A GRPOTrainer whose advantages and loss come from `grpo_core`.

    `last_terms`: the named intermediates [B T] of the last micro-batch, detached; `last_mask` [B T]: its trained tokens.
    The denominators are those of the optimizer step over all micro-batches and processes. Where one generation serves several
    steps, or one step several generations, TRL knows the tokens of a generation only, and a step counts its share of them.
    Entropy quantiles and covariances are taken within a micro-batch.

    Raises ValueError in one line, naming the setting, where TRL as it is set up has not what the convention needs.
    """

    args: Any  # GRPOConfig; it and the next are set once the trainer is built, though transformers and TRL allow for None
    model: Any
    accelerator: Any
    num_generations: int
    num_generations_eval: int

    def __init__(self, *args: Any, convention: Convention | str, **kwargs: Any) -> None:
        chosen = preset(convention).convention() if isinstance(convention, str) else convention
        absent = [name for name in OVERRIDDEN if not hasattr(GRPOTrainer, name)]
        if absent:
            raise ValueError(f"trl: found a version whose GRPOTrainer has no {', '.join(absent)}, allowed: 1.16")
        super().__init__(*args, **kwargs)
        self.convention = replace(chosen, max_completion_length=self.max_completion_length)
        sampler = bool(self.use_vllm or self.rollout_func)
        refused = "; ".join(_refusals(self.convention, self.args, sampler))
        if refused:
            raise ValueError(refused)
        unread = _unread(self.convention, self.args)
        if unread:
            warnings.warn(f"GRPOConfig: the convention decides, not {', '.join(unread)}", stacklevel=2)
        self.last_terms: LossTerms | None = None
        self.last_mask: Bool[Tensor, "B T"] | None = None
        self._rewards: Float[Tensor, "B R"] | None = None  # of all processes
        self._scored: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    # ---- listening: what TRL computes on its way ------------------------------------------------------------------------
    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards
        return rewards

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._scored = scored
        return scored

    # ---- advantages -----------------------------------------------------------------------------------------------------
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's generation batch with the convention's advantages, [B] or, where tokens differ, [B T]; and `rewards` [B]
        (0 where no function answered) and `num_rows_in_batch`, the rows with a trained token over all processes."""
        output = super()._generate_and_score_completions(inputs)
        assert self._rewards is not None
        values = [tuple(None if r != r else r for r in row) for row in self._rewards.tolist()]
        size = self.num_generations if self.model.training else self.num_generations_eval
        mask = self._everywhere(trained_mask(output))
        nothing = torch.zeros(mask.shape)
        in_reward = self.convention.reward_kl != "none"
        old, ref = (self._everywhere(output[f"{whose}_per_token_logps"]) if in_reward else nothing for whose in ("old", "ref"))
        config, groups = part(AdvantageConfig, self.convention), torch.arange(len(values)) // size
        rows, per_token = batch_advantages(values, self.reward_weights.tolist(), groups, old, ref, mask, config)
        start, device = self.accelerator.process_index * len(inputs), output["advantages"].device
        mine, width = slice(start, start + len(inputs)), output["completion_ids"].shape[1]
        one_each = config.advantage_whiten == "none" and config.reward_kl != "after"
        output["advantages"] = (per_token[mine, 0] if one_each else per_token[mine, :width]).to(device)
        output["rewards"] = rows.reward[mine].nan_to_num(0.0).to(device)
        output["num_rows_in_batch"] = mask.any(1).sum().to(device)
        logged = self._logs["advantages"]  # the table of completions: TRL's are the last in it
        kept = list(logged)[: -len(values)]
        logged.clear()
        logged.extend(kept + rows.advantages.tolist())
        return output

    def _everywhere(self, values: Tensor) -> Tensor:
        """[B T] of this process -> [B T] of all, as wide as the widest, on the CPU."""
        return self.accelerator.gather(self.accelerator.pad_across_processes(values, dim=1)).cpu()

    # ---- loss -----------------------------------------------------------------------------------------------------------
    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Float[Tensor, ""]:
        """The micro-batch's share of the step's loss, times the processes (gradients are averaged over them), and TRL's
        router loss where the model has one."""
        super()._compute_loss(model, inputs)  # the forward pass and TRL's metrics; nothing keeps its loss
        assert self._scored is not None
        policy, entropy, router = self._scored
        self._scored = None
        assert entropy is not None
        mask, totals = trained_mask(inputs), self.totals(inputs)
        old = inputs.get("old_per_token_logps")
        old = policy.detach() if old is None else old  # TRL: the policy itself, where each completion is trained once
        ref, sampler = inputs.get("ref_per_token_logps", policy.detach()), inputs.get("sampling_per_token_logps")
        if sampler is not None:  # NaN: vLLM has no number for this token, and nothing is corrected there
            sampler = torch.where(sampler.isnan(), old, sampler)
        config, advantages = part(LossConfig, self.convention), inputs["advantages"].to(policy)
        rewards = inputs["rewards"].to(policy)
        terms = policy_loss(policy, old, ref, advantages, mask, entropy, config, totals, sampler, rewards)
        self.last_terms, self.last_mask = detached(terms), mask
        self._log_terms(totals.micro_batches, "ref_per_token_logps" in inputs)
        loss = terms.loss * self.accelerator.num_processes
        return loss if router is None else loss + self.router_aux_loss_coef * router / self._accumulated()

    def _accumulated(self) -> int:
        """The micro-batches of a process that one optimizer step sums; evaluation sums none."""
        return self.current_gradient_accumulation_steps if self.model.training else 1

    def totals(self, inputs: dict[str, Any]) -> Totals:
        """The denominators of the optimizer step that this micro-batch is a part of."""
        generated = self.args.steps_per_generation if self.model.training else 1  # the micro-batches of a generation
        share, micro_batches = self._accumulated() / generated, self._accumulated() * self.accelerator.num_processes
        rows = len(inputs["completion_ids"]) * micro_batches
        if not self.convention.count_empty_rows:
            rows = (inputs["num_rows_in_batch"] * share).clamp(min=1)
        width = inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1] - 1
        return Totals(rows=rows, tokens=inputs["num_items_in_batch"] * share, width=width, micro_batches=micro_batches)

    def _log_terms(self, micro_batches: int, with_ref: bool) -> None:
        """Means over processes, and by TRL over micro-batches: of the shares, that is the number of the whole step. No KL
        where there is nothing that it is taken to."""
        assert self.last_terms is not None and self.last_mask is not None
        numbers = summarize(self.last_terms, self.last_mask)
        if not (with_ref or self.convention.beta):
            numbers = {name: value for name, value in numbers.items() if not name.startswith("kl")}
        own = [value * (micro_batches if name in SHARES else 1) for name, value in numbers.items()]
        means = self.accelerator.reduce(torch.tensor(own, device=self.accelerator.device), reduction="mean").tolist()
        mode = "train" if self.model.training else "eval"
        for name, value in zip(numbers, means, strict=True):
            self._metrics[mode][f"grpo_core/{name}"].append(value)


def trained_mask(inputs: dict[str, Any]) -> Bool[Tensor, "B T"]:
    """The completion's tokens without those that a tool wrote."""
    return (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()


def _refusals(convention: Convention, args: GRPOConfig, sampler: bool) -> Iterator[str]:
    """A clause per setting that keeps TRL from having what the convention needs. `sampler`: it samples with log-probs."""
    one, two = torch.zeros(1, 1), torch.zeros(1)
    has = LossInputs(
        mask=one.bool(), policy_logprobs=one, old_logprobs=one, entropy=one, rewards=((0.0,),), group_ids=two.long(),
        truncated=two.bool(), ref_logprobs=one if args.beta else None, sampler_logprobs=one if sampler else None,
    )  # fmt: skip
    lacking = missing(has, convention)
    if "ref_logprobs" in lacking:
        yield "beta: found 0 in GRPOConfig, allowed: above 0 (the convention needs ref_logprobs, and TRL loads no reference)"
    if "sampler_logprobs" in lacking:
        yield "use_vllm: found False, allowed: True (the convention needs sampler_logprobs)"
    used_up = (args.steps_per_generation or 1) * args.num_iterations  # micro-batches that a generation is trained for
    keeps_old = args.gradient_accumulation_steps % used_up or args.use_vllm and args.vllm_importance_sampling_correction
    if convention.reward_kl != "none" and not keeps_old:
        yield (
            f"num_iterations: found {args.num_iterations}, allowed: more (reward_kl needs old_logprobs, and TRL scores none "
            f"where a generation lasts for one optimizer step)"
        )
    if args.mask_truncated_completions != convention.mask_truncated:
        yield (
            f"mask_truncated_completions: found {args.mask_truncated_completions}, allowed: {convention.mask_truncated} "
            f"(the convention's mask_truncated)"
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        yield f"multi_objective_aggregation: found {args.multi_objective_aggregation!r}, allowed: 'sum_then_normalize'"
    if args.use_adaptive_entropy:
        yield "use_adaptive_entropy: found True, allowed: False (the convention's entropy_coef is a constant)"


def _unread(convention: Convention, args: GRPOConfig) -> list[str]:
    """Settings of GRPOConfig that were changed and do not reach the loss."""
    changed = [name for name in UNREAD if getattr(args, name) != GRPOConfig.__dataclass_fields__[name].default]
    return changed + ["beta"] * (args.beta not in (0, convention.beta))
