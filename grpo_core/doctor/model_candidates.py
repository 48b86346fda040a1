"""What a model says of a batch's tokens when it is asked rightly, and when it is asked in each of the usual wrong ways.

Axes: M rows looked at · T scored positions · n places (row, column) that are scored · S prompt + completion tokens ·
D hidden size · V vocabulary. Log-probs in nats. The policy's weights are not touched; a pass with dropout is made on a copy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..logprobs import position_ids
from ..policy import Policy
from ..types import Batch
from .candidates import CHUNK, number, scored

COPIED = 2_000_000_000  # parameters of a model that is still copied for a pass with dropout


@dataclass(frozen=True)
class Pass:
    """One way of asking: the ids, the mask and the positions that the model gets, and where the scored tokens stand there."""

    ids: Tensor  # [M S]
    mask: Tensor  # [M S]
    positions: Tensor  # [M S]
    targets: Tensor  # [M T] place in the row of each column's token


def real_mask(batch: Batch) -> Tensor:
    """[B S] the tokens that a sound pass attends to: from a row's first real token to its last, without padding between."""
    mask = batch.row_mask()
    span = (mask.cumsum(1) > 0) & (mask.flip(1).cumsum(1).flip(1) > 0)
    pad = batch.meta.get("pad_token_id")
    return mask | (span & (batch.row_ids() != pad) if isinstance(pad, int) else span)


def right_pass(batch: Batch) -> Pass:
    mask = real_mask(batch)
    targets = batch.token_positions().expand(len(mask), -1)
    return Pass(batch.row_ids(), mask, position_ids(mask), targets)


def wrong_passes(batch: Batch, bos_id: int | None) -> dict[str, Pass]:
    """name -> the pass, for every mistake that this batch could have met."""
    right = right_pass(batch)
    plain = torch.arange(right.ids.shape[1]).expand_as(right.ids)
    everything, stored = torch.ones_like(right.mask), batch.row_mask()
    found = {}
    if (plain != right.positions)[right.mask].any():
        found["no position ids"] = Pass(right.ids, right.mask, plain, right.targets)
    if batch.position_ids is not None and (batch.position_ids != right.positions)[right.mask].any():
        found["position ids as stored"] = Pass(right.ids, right.mask, batch.position_ids.clamp(min=0), right.targets)
    if not right.mask[:, 0].all():  # what stands behind a row does not reach its tokens: attention is causal
        found["no attention mask"] = Pass(right.ids, everything, right.positions, right.targets)
        found["neither mask nor positions"] = Pass(right.ids, everything, plain, right.targets)
    if (stored != right.mask).any():
        found["attention mask with holes"] = Pass(right.ids, stored, right.positions, right.targets)
    found |= {name: behind(batch, prompts) for name, prompts in other_prompts(batch, bos_id).items()}
    return {name: wrong for name, wrong in found.items() if wrong.ids.shape[1] > 1}


def other_prompts(batch: Batch, bos_id: int | None) -> dict[str, list[list[int]]]:
    """name -> prompts that the other side may have read; only those that differ from the batch's."""
    own = prompts_of(batch)
    bos, limit = batch.meta.get("bos_token_id", bos_id), number(batch.meta.get("max_prompt_length"))
    found = {}
    if bos is not None:
        found["start token twice"] = [[bos, *prompt] if prompt[:1] == [bos] else prompt for prompt in own]
        found["start token missing"] = [prompt[1:] if prompt[:1] == [bos] else prompt for prompt in own]
        found["start token added"] = [prompt if prompt[:1] == [bos] else [bos, *prompt] for prompt in own]
    if limit and limit >= 1:
        found["prompt cut at its limit"] = [prompt[-int(limit) :] for prompt in own]
    if batch.sampler_prompt_ids is not None:
        found["the engine's prompt"] = engine_prompts(batch)
    return {name: prompts for name, prompts in found.items() if prompts != own and all(prompts)}


def prompts_of(batch: Batch) -> list[list[int]]:
    """The real tokens of each row before its completion."""
    real, start = real_mask(batch), starts(batch).tolist()
    ids = batch.row_ids()
    return [ids[row, :first][real[row, :first]].tolist() for row, first in enumerate(start)]


def starts(batch: Batch) -> Tensor:
    """[B] where each row's completion begins."""
    completion = batch.row_completion_mask()
    if batch.prompt_ids is not None:
        return torch.full((len(completion),), batch.prompt_ids.shape[1])
    return torch.where(completion.any(1), completion.long().argmax(1), completion.shape[1])


def engine_prompts(batch: Batch) -> list[list[int]]:
    """The prompts that the engine saw, without the padding at their left."""
    assert batch.sampler_prompt_ids is not None
    pad = batch.meta.get("pad_token_id", 0)
    real = (batch.sampler_prompt_ids != pad).cumsum(1) > 0
    return [ids[keep].tolist() for ids, keep in zip(batch.sampler_prompt_ids, real, strict=True)]


def behind(batch: Batch, prompts: list[list[int]]) -> Pass:
    """The batch's completions behind other prompts, padded at the left anew."""
    ids, real, first = batch.row_ids(), real_mask(batch), starts(batch)
    width, tail = max(map(len, prompts)), ids.shape[1] - int(first.min())
    new_ids = torch.zeros(len(ids), width + tail, dtype=ids.dtype)
    new_mask = torch.zeros_like(new_ids, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        start = int(first[row])
        left, right = width - len(prompt), width + ids.shape[1] - start
        new_ids[row, left:width] = torch.tensor(prompt, dtype=ids.dtype)
        new_ids[row, width:right] = ids[row, start:]
        new_mask[row, left:width] = True
        new_mask[row, width:right] = real[row, start:]
    targets = batch.token_positions() - first.unsqueeze(1) + width
    return Pass(new_ids, new_mask, position_ids(new_mask), targets.clamp(1, max(1, width + tail - 1)))


# ---- passes -> values ----------------------------------------------------------------------------------------------------
def hidden_of(policy: Policy, way: Pass) -> Tensor:
    """[M S D] last hidden states."""
    positions = way.positions if policy.max_length is None else way.positions.clamp(max=policy.max_length - 1)
    ids, mask, positions = (part.to(policy.device) for part in (way.ids, way.mask, positions))
    with torch.no_grad():
        return policy.extend(ids, mask, positions, None)[0]


def logits_of(policy: Policy, hidden: Tensor, way: Pass, places: Tensor, offset: int = 0) -> Tensor:
    """[n V] the logits `offset` positions behind those that predict the tokens at these (row, column) places."""
    source = (way.targets[places[:, 0], places[:, 1]] - 1 + offset).clamp(0, hidden.shape[1] - 1)
    with torch.no_grad():
        return policy.project(hidden[places[:, 0], source]).float().cpu()


def values_of(policy: Policy, way: Pass, places: Tensor, temperature: float, hidden: Tensor | None = None) -> Tensor:
    """[n] log-probs of the tokens at these places under one way of asking, a chunk of logits at a time."""
    hidden = hidden_of(policy, way) if hidden is None else hidden
    parts = []
    for part in places.split(max(1, CHUNK // policy.vocab_size)):
        ids = way.ids[part[:, 0], way.targets[part[:, 0], part[:, 1]]]
        parts.append(scored(logits_of(policy, hidden, way, part), ids, temperature))
    return torch.cat(parts)


def in_bf16(policy: Policy, way: Pass, places: Tensor, temperature: float) -> Tensor:
    """[n] under a bf16 forward pass."""
    with torch.autocast(policy.device.type, dtype=torch.bfloat16):
        return values_of(policy, way, places, temperature)


def with_dropout(policy: Policy, way: Pass, places: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
    """[n] of two passes in train mode; None where the model has no dropout or is too large to copy."""
    if not has_dropout(policy) or sum(p.numel() for p in policy.model.parameters()) > COPIED:
        return None
    copy = policy.clone()
    copy.model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return values_of(copy, way, places, temperature), values_of(copy, way, places, temperature)


def has_dropout(policy: Policy) -> bool:
    """Some module drops with a probability above 0 when the model is in train mode."""
    config = policy.model.config.get_text_config()
    shares = (getattr(config, name, 0.0) for name in ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"))
    modules = (module.p for module in policy.model.modules() if isinstance(module, torch.nn.Dropout))
    return any(isinstance(share, float) and share > 0 for share in (*shares, *modules))
