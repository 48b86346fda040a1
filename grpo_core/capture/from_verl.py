"""A verl batch as a batch file (read from verl 0.9.1, verl/trainer/ppo/ray_trainer.py and verl/protocol.py).

    grpo_core.capture.verl(batch, "step.safetensors", preset="verl", loss=…)    # before actor_rollout_wg.update_actor(batch)

`prompts` [B P], `responses` [B C] and `attention_mask` [B P+C] are verl's; everything [B C] belongs to the responses. Its
`old_log_probs` are the policy's at the start of the update. Inside the actor, `log_prob` is the policy itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..batch import Batch
from ..batch_file.fields import BadField
from ..batch_file.files import shown
from .by_hand import save

PER_TOKEN = {
    "old_log_probs": "old_logprobs", "ref_log_prob": "ref_logprobs", "rollout_log_probs": "sampler_logprobs",
    "advantages": "advantages", "entropys": "entropy",
}  # fmt: skip


def verl(data: Any, path: str | Path, log_prob: Tensor | None = None, **settings: Any) -> Batch:
    """Writes a `DataProto`, a TensorDict or a dict of tensors as a batch file, and returns what is in it.

    `log_prob` [B C]: the policy's log-probs as the actor computed them; without it the file says that they are the old ones,
    as at the first update. `settings`: names of `meta` (temperature, beta, clip_low, preset, pad_token_id, …) and of
    `reported` (loss, grad_norm). Raises ValueError with one line.
    """
    tensors, beside = _parts(data)
    missing = [name for name in ("prompts", "responses", "attention_mask") if tensors.get(name) is None]
    if missing:
        raise ValueError(f"{shown(Path(path))}: {BadField(missing[0], 'none', 'prompts, responses and attention_mask')}")
    width = tensors["prompts"].shape[1]
    real = tensors["attention_mask"].bool()
    prompt, answer = real[:, :width], real[:, width:]
    fields: dict[str, Any] = {
        "prompt_ids": tensors["prompts"], "prompt_mask": prompt, "completion_ids": tensors["responses"],
        "completion_mask": answer,
        "position_ids": _row_positions(tensors.get("position_ids")),
    }  # fmt: skip
    trained = tensors.get("response_mask", tensors.get("loss_mask"))
    if trained is not None:  # without the tokens that a tool wrote
        trained = trained[:, -answer.shape[1] :].bool()
        fields |= {} if bool((trained == answer).all()) else {"loss_mask": trained, "tool_mask": trained | ~answer}
    fields |= {ours: tensors.get(theirs) for theirs, ours in PER_TOKEN.items()}
    fields |= _rewards(tensors) | _groups(beside)
    meta = {"framework": "verl", **_meta_info(data)}
    if log_prob is None and fields["old_logprobs"] is not None:
        log_prob = fields["old_logprobs"]
        meta["iteration"] = 0
        fields["derived"] = ["policy_logprobs: old_log_probs, as at the first update: the ratio is 1"]
    return save(path, **fields | {"policy_logprobs": log_prob, "meta": meta} | settings)


def _parts(data: Any) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """The tensors by name, and what stands beside them, of a DataProto or of anything with names."""
    tensors = getattr(data, "batch", data)
    names = list(tensors.keys()) if hasattr(tensors, "keys") else []
    held = {name: tensors[name] for name in names if isinstance(tensors[name], Tensor)}
    return held, getattr(data, "non_tensor_batch", None) or {}


def _row_positions(positions: Tensor | None) -> Tensor | None:
    """[B S]; models that see images have several per token, which the batch file has no place for."""
    return positions if positions is not None and positions.dim() == 2 else None


def _rewards(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """verl keeps a row's score on its last token."""
    scores = tensors.get("token_level_scores", tensors.get("rm_scores"))
    return {} if scores is None else {"rewards": scores.sum(-1), "reward_names": ["score"]}


def _groups(beside: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of one uid answer one prompt."""
    if beside.get("uid") is None:
        return {}
    numbered: dict[Any, int] = {}
    return {"group_ids": [numbered.setdefault(str(uid), len(numbered)) for uid in beside["uid"]]}


def _meta_info(data: Any) -> dict[str, Any]:
    info = getattr(data, "meta_info", None) or {}
    heat, step = info.get("temperature"), info.get("global_steps")
    known = {"temperature": float(heat)} if isinstance(heat, (int, float)) else {}
    return known | ({"logged_step": step} if isinstance(step, int) else {})
