"""Sample G completions of each prompt, and keep what the sampler knew: its log-probs and the mass it sampled from.

The log-probs are over the full vocabulary at the sampling temperature, whatever top-k and top-p left to choose from;
the kept mass stands beside them. A row ends at its first EOS, which counts; nothing after it does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from .config import Recipe
from .decoding import weights_for_few_rows
from .logprobs import gather, log_softmax, position_ids
from .policy import Policy
from .tasks import RewardFunction, score
from .types import Batch, Rollout

PIECE = 256  # of the vocabulary, while a token is picked


def sample(
    policy: Policy,
    prompts: tuple[str, ...],
    recipe: Recipe,
    rewards: RewardFunction = score,
    draws: Tensor | None = None,
    draw: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] | None = None,
) -> Rollout:
    """`recipe.group_size` completions per prompt, rows of a group side by side, rewarded. Same seed, same rollout.

    `rewards` is called as `tasks.score` is. `draws` [B C] are the uniform numbers that pick the tokens, by default those of
    `draws_of`; whoever samples a part of the rows hands in that part of them and gets the very rows of the whole. `draw` is
    called in the place of `generate` (`samplers/`).
    """
    prompt_ids, prompt_mask = encode_prompts(policy, prompts, recipe)
    draws = draws_of(recipe, len(prompts) * recipe.group_size) if draws is None else draws
    completion_ids, completion_mask, logprobs, kept = (draw or generate)(policy, prompt_ids, prompt_mask, recipe, draws)
    lengths = completion_mask.sum(1).tolist()
    rows = [ids[:length] for ids, length in zip(completion_ids.tolist(), lengths, strict=True)]
    finish = tuple("stop" if row[-1] in policy.eos_ids else "length" for row in rows)
    texts = tuple(policy.decode(row) for row in rows)
    asked = [prompt for prompt in prompts for _ in range(recipe.group_size)]
    return Rollout(
        prompts=prompts,
        prompt_ids=prompt_ids.repeat_interleave(recipe.group_size, 0),
        prompt_mask=prompt_mask.repeat_interleave(recipe.group_size, 0),
        completion_ids=completion_ids, completion_mask=completion_mask,
        group_ids=torch.arange(len(prompts), device=policy.device).repeat_interleave(recipe.group_size),
        sampler_logprobs=logprobs, kept_mass=kept, finish_reasons=finish, completions=texts,
        rewards=rewards(recipe.reward_functions, asked, texts, finish), reward_names=recipe.reward_functions,
    )  # fmt: skip


def encode_prompts(policy: Policy, prompts: tuple[str, ...], recipe: Recipe) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
    """Ids and mask of every prompt, padded on the left so that all completions start in one column."""
    numbered = enumerate(prompts, start=1)
    encoded = [encode_prompt(policy, prompt, recipe, f"prompts: prompt {number}") for number, prompt in numbered]
    width = max(map(len, encoded))
    ids = torch.tensor([[policy.pad_id] * (width - len(row)) + row for row in encoded], device=policy.device)
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in encoded], device=policy.device)
    return ids, mask


def encode_prompt(policy: Policy, prompt: str, recipe: Recipe, who: str) -> list[int]:
    """Its ids. Raises ValueError, in `who`'s name, where the model cannot read it or has no room left to answer."""
    ids = policy.encode(prompt)
    if not ids:
        raise ValueError(f"{who} ({prompt[:40]!r}) becomes 0 tokens, allowed: at least 1")
    if max(ids) >= policy.vocab_size:
        raise ValueError(
            f"{who} has the id {max(ids)}, allowed: below {policy.vocab_size} "
            f"(the tokenizer of {policy.name!r} knows more tokens than the model)"
        )
    room = policy.max_length and policy.max_length - recipe.max_completion_length
    if room is not None and len(ids) > room:
        raise ValueError(
            f"{who} has {len(ids)} tokens, allowed: {max(room, 0)} (the model reads "
            f"{policy.max_length}, of which max_completion_length takes {recipe.max_completion_length})"
        )
    return ids


def draws_of(recipe: Recipe, rows: int) -> Float[Tensor, "B C"]:
    """One uniform number for each token that may be sampled. A row's text depends on its own numbers only: not on which
    rows are sampled beside it, nor on how many processes share them."""
    return torch.rand(recipe.max_completion_length, rows, generator=torch.Generator().manual_seed(recipe.seed)).T


def pick(probs: Float[Tensor, "B V"], draw: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The token in whose share of [0, 1) the number falls, with the vocabulary laid end to end: first the piece of it, then
    the token in the piece. (One running sum over a large vocabulary takes ten times as long.)"""
    pieces = torch.nn.functional.pad(probs, (0, -probs.shape[1] % PIECE)).unflatten(1, (-1, PIECE))
    ends = pieces.sum(-1, dtype=torch.float64).cumsum(1)  # fp32 would move the borders by 1e-5
    piece, goal = _first_above(ends, draw.unsqueeze(1) * ends[:, -1:])
    before = torch.where(piece > 0, ends.gather(1, (piece - 1).clamp(min=0)), 0.0)
    inside = pieces.take_along_dim(piece.unsqueeze(2), 1).squeeze(1).cumsum(1, dtype=torch.float64)
    return (piece * PIECE + _first_above(inside, goal - before)[0]).squeeze(1)


def _first_above(ends: Float[Tensor, "B N"], goal: Float[Tensor, "B 1"]) -> tuple[Int[Tensor, "B 1"], Float[Tensor, "B 1"]]:
    """The first place whose end is above the goal, and the goal; rounding may have moved it onto the last end, where there is
    nothing above it."""
    goal = torch.minimum(goal, torch.nextafter(ends[:, -1:], torch.zeros_like(goal)))
    return torch.searchsorted(ends, goal, right=True), goal


def generate(
    policy: Policy,
    prompt_ids: Int[Tensor, "N P"],
    prompt_mask: Bool[Tensor, "N P"],
    recipe: Recipe,
    draws: Float[Tensor, "B M"],
) -> tuple[Int[Tensor, "B C"], Bool[Tensor, "B C"], Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """Completion ids, mask, sampler log-probs and kept mass. Behind a row's end: the pad id, mask False and 0s.

    B / N rows for each of the N prompts. A prompt is read once for its whole group, and a finished row leaves the batch,
    where the model's cache allows it.
    """
    # inference mode spares the bookkeeping of no_grad; what leaves it is cloned, so that a loss may use it
    with torch.inference_mode(), weights_for_few_rows(policy.model, recipe.max_completion_length):
        sampled = generate_tokens(policy, prompt_ids, prompt_mask, recipe, draws)
    ids, mask, logprobs, kept = (tensor.clone() for tensor in sampled)
    return ids, mask, logprobs, kept


def generate_tokens(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, recipe: Recipe, draws: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    filters, eos = _filters(recipe), torch.tensor(sorted(policy.eos_ids), device=policy.device)
    draws = draws.to(policy.device)
    ids = torch.full(draws.shape, policy.pad_id, device=policy.device)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    rows = torch.arange(len(ids), device=policy.device)  # those still in the batch
    alive = torch.ones_like(rows, dtype=torch.bool)  # without dropping, finished rows stay in it
    times = len(ids) // len(prompt_ids)
    hidden, cache = policy.prefill(prompt_ids, prompt_mask, times, recipe.max_completion_length)
    precision = torch.promote_types(policy.dtype, torch.float32)
    logprobs, kept = (torch.zeros(draws.shape, dtype=precision, device=policy.device) for _ in range(2))
    row_mask = prompt_mask.repeat_interleave(times, 0)
    for column in range(recipe.max_completion_length):
        step_logprobs = log_softmax(policy.project(hidden), recipe.temperature)
        filtered = filters(ids, step_logprobs)  # pyright: ignore[reportArgumentType]  # its annotation knows LongTensor alone
        mass = filtered.exp().sum(-1)
        if mass.isnan().any():
            raise ValueError(f"model: {policy.name!r} gives logits that are not finite; have its weights run away?")
        chosen = pick(filtered.softmax(-1), draws[rows, column])
        ids[rows, column] = torch.where(alive, chosen, policy.pad_id)
        mask[rows, column] = alive
        logprobs[rows, column] = alive * gather(step_logprobs, chosen)
        kept[rows, column] = alive * mass.clamp(max=1.0)
        row_mask = torch.cat([row_mask, alive.unsqueeze(1)], dim=1)
        alive = alive & ~torch.isin(chosen, eos)
        if not alive.any() or column + 1 == recipe.max_completion_length:
            break
        if policy.reorders_cache and not alive.all():
            policy.reorder(cache, alive.nonzero().squeeze(1))
            rows, row_mask, chosen, alive = rows[alive], row_mask[alive], chosen[alive], alive[alive]
        hidden, cache = policy.extend(chosen.unsqueeze(1), row_mask, position_ids(row_mask)[:, -1:], cache)
        hidden = hidden[:, -1]
    width = int(mask.sum(1).max())
    return ids[:, :width], mask[:, :width], logprobs[:, :width], kept[:, :width]


def _filters(recipe: Recipe) -> LogitsProcessorList:
    filters = LogitsProcessorList()
    if recipe.top_k:
        filters.append(TopKLogitsWarper(top_k=recipe.top_k))
    if recipe.top_p < 1:
        filters.append(TopPLogitsWarper(top_p=recipe.top_p))
    return filters


def widened(rollout: Rollout, prompt: int, completion: int, pad_id: int) -> Rollout:
    """The rollout with padding up to these widths: prompts on the left, completions on the right."""
    if (prompt, completion) == (rollout.prompt_mask.shape[1], rollout.completion_mask.shape[1]):
        return rollout
    wider: dict[str, Any] = {}
    for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "sampler_logprobs", "kept_mass"):
        values = getattr(rollout, name)
        more = (prompt if name.startswith("prompt") else completion) - values.shape[1]
        padding = (more, 0) if name.startswith("prompt") else (0, more)
        wider[name] = torch.nn.functional.pad(values, padding, value=pad_id if name.endswith("_ids") else 0)
    return replace(rollout, **wider)


def rows_of(rollout: Rollout, index: Tensor) -> Rollout:
    """These rows of a rollout; prompts stay as they are, for the group ids point to them."""
    picked: dict[str, Any] = {}
    for name, value in vars(rollout).items():
        if isinstance(value, Tensor):
            picked[name] = value[index]
        elif name in ("finish_reasons", "completions", "rewards"):
            picked[name] = tuple(value[row] for row in index.tolist())
    return replace(rollout, **picked)


def to_batch(rollout: Rollout, layout: str, mask_truncated: bool = False) -> Batch:
    """The rollout as one of the two layouts; the sampler's log-probs move to the columns of that layout.

    `mask_truncated` takes the rows that were cut off out of the loss.
    """
    batch = _in_layout(rollout, layout)
    if not mask_truncated:
        return batch
    finished = torch.tensor([reason != "length" for reason in rollout.finish_reasons])
    return replace(batch, loss_mask=batch.trained_mask() & finished.unsqueeze(1))


def _in_layout(rollout: Rollout, layout: str) -> Batch:
    if layout == "prompt_completion":
        return Batch(
            prompt_ids=rollout.prompt_ids, prompt_mask=rollout.prompt_mask,
            completion_ids=rollout.completion_ids, completion_mask=rollout.completion_mask,
            group_ids=rollout.group_ids, sampler_logprobs=rollout.sampler_logprobs,
        )  # fmt: skip
    nothing = torch.zeros_like(rollout.prompt_mask)
    before = torch.zeros(rollout.prompt_ids.shape[0], rollout.prompt_ids.shape[1] - 1)
    return Batch(
        input_ids=torch.cat([rollout.prompt_ids, rollout.completion_ids], dim=1),
        attention_mask=torch.cat([rollout.prompt_mask, rollout.completion_mask], dim=1),
        response_mask=torch.cat([nothing, rollout.completion_mask], dim=1),
        group_ids=rollout.group_ids, sampler_logprobs=torch.cat([before, rollout.sampler_logprobs], dim=1),
    )  # fmt: skip
