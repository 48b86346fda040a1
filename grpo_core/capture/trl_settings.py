"""What a GRPOTrainer's settings mean in the batch file's names and in the core's conventions (TRL 1.16.0)."""

from dataclasses import dataclass, fields
from typing import Any

from ..convention import Convention
from ..policy import piece_of
from ..presets import Preset, preset
from ..presets.preset import FREE
from ..presets.trl import TRL

LOSS = {  # loss_type -> what it is in the core
    "grpo": {"aggregation": "seq-mean-token-mean"}, "bnpo": {"aggregation": "micro-token-mean"},
    "dapo": {"aggregation": "token-mean"}, "dr_grpo": {"aggregation": "dr_grpo"},
    "cispo": {"surrogate": "cispo", "clip_low": 1.0}, "sapo": {"surrogate": "sapo", "aggregation": "seq-mean-token-mean"},
    "vespo": {"surrogate": "vespo"}, "luspo": {"aggregation": "seq-mean-token-sum"},
}  # fmt: skip
STD = {"group": "unbiased", "batch": "batch", "none": "none"}  # scale_rewards


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`meta` of the batch file, and what the file of one step depends on beside."""

    meta: dict[str, Any]
    ends: list[int]  # ids that end a completion, as TRL counts them
    group_size: int
    rewards_elsewhere: str  # why advantages cannot be had from a step's rewards; "" where they can
    generated: int  # micro-batches of one generation

    def share(self, micro_batches: int) -> float:
        """The share of a generation's tokens that TRL counts in a step of so many micro-batches."""
        return micro_batches / self.generated


def settings_of(trainer: Any) -> Settings:
    """Of a trainer as it is now. Settings that no field of `meta` has a name for stand there by the core's name for them,
    where they are not the preset's."""
    args, tokenizer = trainer.args, trainer._tokenizer
    convention = convention_of(trainer)
    nearest = min(TRL, key=lambda known: _distance(convention, known))  # the first of equals
    always = ("beta", "clip_low", "clip_high", "kl_estimator", "aggregation", "mask_truncated", "advantage_mean",
              "advantage_std", "advantage_eps", "max_completion_length")  # fmt: skip
    meta: dict[str, Any] = {"framework": "trl", "preset": nearest.name}
    names = dict.fromkeys((*always, *_differing(convention, nearest)))
    meta |= {name: _plain(getattr(convention, name)) for name in names}
    meta |= {
        "temperature": float(trainer.temperature), "top_p": float(trainer.top_p or 1.0), "top_k": int(trainer.top_k or 0),
        "num_generations": trainer.num_generations, "kl_in": "loss", "training_mode": bool(_dropout(trainer.model)),
        "pad_token_id": tokenizer.pad_token_id, "eos_token_ids": list(trainer.eos_token_ids), "vocab_size": len(tokenizer),
    }  # fmt: skip
    meta |= {} if trainer.min_p is None else {"min_p": float(trainer.min_p)}
    meta |= {} if tokenizer.bos_token_id is None else {"bos_token_id": tokenizer.bos_token_id}
    return Settings(
        meta=meta, ends=[*trainer.eos_token_ids, tokenizer.pad_token_id], group_size=trainer.num_generations,
        rewards_elsewhere=_elsewhere(trainer), generated=args.steps_per_generation,
    )  # fmt: skip


def _distance(convention: Convention, known: Preset) -> tuple[int, bool]:
    """How many settings differ; of presets equally far the one that has a KL where this run has one."""
    return len(_differing(convention, known)), (known.convention().beta == 0) != (convention.beta == 0)


def _differing(convention: Convention, known: Preset) -> list[str]:
    """Settings of which the preset says something else."""
    theirs = known.convention()
    return [f.name for f in fields(Convention) if f.name not in FREE and getattr(convention, f.name) != getattr(theirs, f.name)]


def convention_of(trainer: Any) -> Convention:
    """TRL's settings between rewards and loss."""
    args = trainer.args
    values: dict[str, Any] = preset("trl").values() | {
        "clip_low": trainer.epsilon_low, "clip_high": trainer.epsilon_high, "beta": trainer.beta,
        "kl_gradient": "times-ratio" if args.use_bias_correction_kl else "plain",
        "ratio": trainer.importance_sampling_level, "advantage_std": STD.get(trainer.scale_rewards, "unbiased"),
        "mask_truncated": bool(trainer.mask_truncated_completions), "max_completion_length": trainer.max_completion_length,
        "entropy_coef": float(trainer.entropy_coef or 0.0),
        "sapo_temperatures": (args.sapo_temperature_pos, args.sapo_temperature_neg),
        "vespo_shape": (args.vespo_k_pos, args.vespo_lambda_pos, args.vespo_k_neg, args.vespo_lambda_neg),
    } | LOSS.get(trainer.loss_type, {})  # fmt: skip
    if trainer.loss_type == "cispo":
        values["clip_high"] = trainer.epsilon_high - 1  # TRL's is the bound itself
    if args.delta is not None and values["surrogate"] == "min-clip":
        values |= {"surrogate": "two-sided", "dual_clip": args.delta}
    gates = []
    if trainer.top_entropy_quantile < 1.0:
        gates.append("top-entropy")
        values["entropy_quantile"] = trainer.top_entropy_quantile
    if trainer.off_policy_mask_threshold is not None:
        gates.append("on-policy-rows")
        values["off_policy_threshold"] = trainer.off_policy_mask_threshold
    values |= {"gates": tuple(gates)} | _correction(trainer)
    return Convention(**values)


def _correction(trainer: Any) -> dict[str, Any]:
    """Weights against the sampler, which TRL takes where vLLM samples."""
    if not (trainer.use_vllm and trainer.vllm_importance_sampling_correction):
        return {}
    level, _, bound = trainer.vllm_importance_sampling_mode.partition("_")
    return {
        "correction": level, "correction_bound": "drop" if bound == "mask" else "truncate",
        "correction_low": trainer.vllm_importance_sampling_clip_min or 0.0,
        "correction_high": trainer.vllm_importance_sampling_clip_max or 0.0,
    }  # fmt: skip


def tokens_of(trainer: Any, ids: list[int]) -> dict[str, str]:
    """id -> text."""
    return {str(token): piece_of(trainer._tokenizer, token) for token in ids}


def _elsewhere(trainer: Any) -> str:
    """Why a step's advantages cannot be had from its rewards, or nothing."""
    args = trainer.args
    if args.multi_objective_aggregation != "sum_then_normalize":
        return "TRL normalised each reward function by itself"
    if trainer.scale_rewards == "batch" and args.steps_per_generation > args.gradient_accumulation_steps:
        return "TRL divides by the std of the whole generation, of which this step trains a part"
    return ""


def _dropout(model: Any) -> bool:
    """Whether a forward pass draws at random: the model trains, and has a dropout above 0."""
    modules = model.modules() if hasattr(model, "modules") else ()
    return any(getattr(module, "p", 0) and module.training for module in modules if type(module).__name__ == "Dropout")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
