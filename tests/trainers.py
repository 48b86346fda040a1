"""Live trainers behind one shape of call: log-probs, advantages and mask go in, their loss comes out with its graph.

Thin adapters: every number is computed by the trainer's own function. Trainers are imported inside the functions, so that
tests can skip where they are not installed. Nothing here sends, downloads or starts a process.
"""

import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CI", "1")  # TRL sends nothing then

import torch
from batches import DrawnBatch
from torch import Tensor

from grpo_core.compare import Evaluation

CUTS = ("min-clip", "dual-clip", "two-sided", "dppo-tv", "dppo-kl")  # surrogates that leave a token without a gradient


def with_grad(loss: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, detached, and d loss / d leaf; zeros where the loss does not depend on it."""
    if not loss.requires_grad:
        return loss, torch.zeros_like(leaf)
    (grad,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return loss.detach(), torch.zeros_like(leaf) if grad is None else grad


def assert_same(theirs: tuple[Tensor, Tensor], ours: Evaluation, relative: float) -> None:
    """Loss and gradient agree, measured against the size of what is summed up: a loss near 0 may be a sum of large terms."""
    loss, grad = theirs
    terms, convention = ours.terms, ours.convention
    size = (terms.token_weight * terms.token_loss).abs().sum() + convention.beta * (terms.kl_weight * terms.kl).abs().sum()
    assert abs(float(loss - terms.loss)) <= relative * float(size) + 1e-12, (float(loss), float(terms.loss))
    gap = (grad - ours.grad).abs()
    assert float(gap.max()) <= relative * float(ours.grad.abs().max()) + 1e-12, (grad, ours.grad)
    plain = convention.ratio == "token" and not (convention.beta or convention.gates or convention.count_padding)
    if plain and convention.surrogate in CUTS:
        pushed = (ours.advantages.abs() > 1e-6) & (terms.token_weight > 0) & (terms.correction > 0)
        assert torch.equal((grad != 0)[pushed], ~terms.is_clipped[pushed]), (grad, terms.is_clipped)


# ---- verl ---------------------------------------------------------------------------------------------------------------
def verl_config(loss_mode: str = "vanilla", **settings):
    """verl's actor settings; those of its PolicyLossConfig may stand among them."""
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    own = {name: settings.pop(name) for name in list(settings) if name in PolicyLossConfig.__dataclass_fields__}
    needed = {"rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}  # no loss reads them
    return FSDPActorConfig(policy_loss=PolicyLossConfig(loss_mode=loss_mode, **own), **needed, **settings)


def verl_policy_loss(loss_mode, policy, old, advantages, mask, agg_mode="token-mean", **settings) -> tuple[Tensor, dict]:
    """One entry of verl's table of policy losses, called directly: the batch's own denominators, no KL."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    return get_policy_loss_fn(loss_mode)(
        old, policy, advantages, mask.to(policy.dtype), loss_agg_mode=agg_mode, config=verl_config(loss_mode, **settings)
    )


def verl_loss(batch: DrawnBatch, policy, advantages, weights=None, **settings) -> tuple[Tensor, dict]:
    """verl's whole actor loss (`ppo_loss`): policy part, KL, entropy, and the denominators of the global batch."""
    from tensordict import TensorDict
    from verl.utils.tensordict_utils import assign_non_tensor
    from verl.workers.utils.losses import ppo_loss

    def packed(values):  # verl's models return rows without padding: here a prompt of one token, then the response
        rows = zip(values, batch.mask.sum(1).tolist(), strict=True)
        return torch.cat([part for row, length in rows for part in (row[:length], row.new_zeros(1))])

    prompt = torch.ones_like(batch.mask[:, :1]).long()
    fields = {
        "prompts": prompt, "responses": batch.mask.long(), "attention_mask": torch.cat([prompt, batch.mask.long()], 1),
        "response_mask": batch.mask, "old_log_probs": batch.old_logprobs, "ref_log_prob": batch.ref_logprobs,
        "advantages": advantages,
    }  # fmt: skip
    fields |= {} if weights is None else {"rollout_is_weights": weights}
    data = TensorDict(fields, batch_size=len(batch.mask))
    assign_non_tensor(data, dp_size=1, batch_num_tokens=int(batch.mask.sum()), global_batch_size=len(batch.mask))
    return ppo_loss(verl_config(**settings), {"log_probs": packed(policy), "entropy": packed(batch.entropy)}, data)


def verl_advantages(name: str, batch: DrawnBatch, reward_kl: float = 0.0, **settings) -> Tensor:
    """[B T] by verl's estimator of that name, the reward on each row's last token."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import compute_rewards, get_adv_estimator_fn

    last = (batch.mask.sum(1, keepdim=True) - 1).clamp(min=0)
    rewards = torch.zeros_like(batch.policy_logprobs).scatter(1, last, batch.rewards.unsqueeze(1))
    rewards = compute_rewards(rewards, batch.old_logprobs, batch.ref_logprobs, reward_kl) if reward_kl else rewards
    grouped = {} if name == "reinforce_plus_plus" else {"index": batch.group_ids.numpy()}
    estimator = get_adv_estimator_fn(name)
    return estimator(rewards, response_mask=batch.mask.double(), config=AlgoConfig(), **grouped, **settings)[0]


def verl_kl(policy: Tensor, ref: Tensor, name: str) -> Tensor:
    """verl's estimator per token."""
    from verl.trainer.ppo.core_algos import kl_penalty

    return kl_penalty(policy, ref, name)


def verl_weights(batch: DrawnBatch, level: str, threshold: float | str) -> Tensor:
    """verl's weights against the sampler."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    gap = batch.old_logprobs - batch.sampler_logprobs
    return compute_rollout_correction_weights(gap, batch.mask.double(), level, threshold)[0]


# ---- Liger-Kernel ---------------------------------------------------------------------------------------------------------
def liger_loss(policy, old, ref, advantages, mask, **settings) -> tuple[Tensor, list]:
    """Liger's loss on log-probs; `advantages` is [B]."""
    from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction

    real = mask.to(policy.dtype)
    return LigerFusedLinearGRPOFunction.ppo_loss_fn(
        policy, real, advantages, real, ref_per_token_logps=ref, old_per_token_logps=old, **settings
    )


def liger_fused_loss(hidden, head, ids, old, ref, advantages, mask, **settings) -> tuple[Tensor, tuple]:
    """Liger's loss from hidden states [B T H] and the head's weights [V H], in chunks, never with all logits at once."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(compiled=False, use_ref_model=ref is not None, **settings)
    real = mask.to(hidden.dtype)
    return loss(hidden, head, ids, real, advantages, ref_per_token_logps=ref, old_per_token_logps=old)


# ---- TRL ----------------------------------------------------------------------------------------------------------------
ROWS = 12  # a number that every group size divides


def trl_trainer(model_folder: Path, **settings):
    """A GRPOTrainer on a tiny model, built once per settings."""
    return _trl_trainer(model_folder, tuple(sorted(settings.items())))


@cache
def _trl_trainer(model_folder: Path, settings: tuple[tuple[str, object], ...]):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    chosen = dict(settings)
    use_vllm = chosen.pop("use_vllm", False)  # set below: building with it would look for a vLLM server
    args = GRPOConfig(
        output_dir=str(model_folder.parent / "trl-output"), use_cpu=True, bf16=False, report_to=[],
        num_iterations=2,  # TRL computes old log-probs only where a generation is used more than once
        per_device_train_batch_size=ROWS, num_generations=ROWS, gradient_checkpointing=False, **chosen,
    )  # fmt: skip
    given = SimpleNamespace(rewards=[])  # what the reward function returns next
    trainer = GRPOTrainer(
        model=str(model_folder), reward_funcs=lambda completions, **_: given.rewards, args=args,
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
    )  # fmt: skip
    trainer.given, trainer.use_vllm = given, use_vllm
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
    return trainer


def trl_inputs(trainer, batch: DrawnBatch) -> dict:
    """TRL's own way from completions to the inputs of its loss: masks, rewards, advantages, old and reference log-probs,
    weights against the sampler. Replaced are the sampler and the forward pass. Groups have one size."""
    lengths = batch.mask.sum(1).clamp(min=1).tolist()  # a completion has a token at least; empty rows: see below
    end = trainer.processing_class.eos_token_id
    completions = [[end + 9] * (n - 1) + [end + 9 if cut else end] for n, cut in zip(lengths, batch.truncated, strict=True)]
    sampled = [row[:n].tolist() for row, n in zip(batch.sampler_logprobs, lengths, strict=True)]
    texts = ["?"] * len(lengths)
    trainer._generate = lambda prompts: (
        [[end + 9]] * len(lengths), completions, None, texts, sampled if trainer.use_vllm else None, {}, None, None
    )  # fmt: skip
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (
        batch.ref_logprobs if model is trainer.ref_model else batch.old_logprobs, None, None
    )  # fmt: skip
    trainer.given.rewards = batch.rewards.tolist()
    trainer.num_generations = int((batch.group_ids == 0).sum())
    inputs = trainer._generate_and_score_completions([{"prompt": "x"} for _ in texts])
    inputs["completion_mask"] = inputs["completion_mask"] * batch.mask.any(1, keepdim=True)
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    return inputs


def trl_loss(trainer, inputs: dict, policy: Tensor, entropy: Tensor) -> tuple[Tensor, dict]:
    """TRL's compute_loss on log-probs, and the metrics that it logs."""
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (policy, entropy, None)
    trainer._metrics["train"].clear()
    loss = trainer.compute_loss(trainer.model, inputs)
    return loss, dict(trainer._metrics["train"])
