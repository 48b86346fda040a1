"""Sample G completions of each prompt, and keep what the sampler knew: its log-probs and the mass it sampled from.

The log-probs are over the full vocabulary at the sampling temperature, whatever top-k and top-p left to choose from;
the kept mass stands beside them. A row ends at its first EOS, which counts; nothing after it does.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from .config import Recipe
from .logprobs import gather, log_softmax, position_ids
from .policy import Policy
from .tasks import score
from .types import Batch, Rollout


def sample(policy: Policy, prompts: tuple[str, ...], recipe: Recipe) -> Rollout:
    """`recipe.group_size` completions per prompt, rows of a group side by side, rewarded. Same seed, same rollout."""
    prompt_ids, prompt_mask = encode_prompts(policy, prompts, recipe)
    completion_ids, completion_mask, logprobs, kept = generate(policy, prompt_ids, prompt_mask, recipe)
    lengths = completion_mask.sum(1).tolist()
    rows = [ids[:length] for ids, length in zip(completion_ids.tolist(), lengths, strict=True)]
    finish = tuple("stop" if row[-1] in policy.eos_ids else "length" for row in rows)
    texts = tuple(policy.decode(row) for row in rows)
    asked = [prompt for prompt in prompts for _ in range(recipe.group_size)]
    return Rollout(
        prompts=prompts, prompt_ids=prompt_ids, prompt_mask=prompt_mask,
        completion_ids=completion_ids, completion_mask=completion_mask,
        group_ids=torch.arange(len(prompts)).repeat_interleave(recipe.group_size),
        sampler_logprobs=logprobs, kept_mass=kept, finish_reasons=finish, completions=texts,
        rewards=score(recipe.reward_functions, asked, texts, finish), reward_names=recipe.reward_functions,
    )  # fmt: skip


def encode_prompts(policy: Policy, prompts: tuple[str, ...], recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Ids and mask [B P] of every row's prompt, padded on the left so that all completions start in one column."""
    encoded = [policy.encode(prompt) for prompt in prompts]
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), start=1):
        if not ids:
            raise ValueError(f"prompts: prompt {number} ({prompt[:40]!r}) becomes 0 tokens, allowed: at least 1")
        if max(ids) >= policy.vocab_size:
            raise ValueError(
                f"prompts: prompt {number} has the id {max(ids)}, allowed: below {policy.vocab_size} "
                f"(the tokenizer of {policy.name!r} knows more tokens than the model)"
            )
        room = policy.max_length and policy.max_length - recipe.max_completion_length
        if room is not None and len(ids) > room:
            raise ValueError(
                f"prompts: prompt {number} has {len(ids)} tokens, allowed: {max(room, 0)} (the model reads "
                f"{policy.max_length}, of which max_completion_length takes {recipe.max_completion_length})"
            )
    width = max(map(len, encoded))
    ids = torch.tensor([[policy.pad_id] * (width - len(row)) + row for row in encoded])
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in encoded])
    return ids.repeat_interleave(recipe.group_size, 0), mask.repeat_interleave(recipe.group_size, 0)


@torch.no_grad()
def generate(
    policy: Policy, prompt_ids: Int[Tensor, "B P"], prompt_mask: Bool[Tensor, "B P"], recipe: Recipe
) -> tuple[Int[Tensor, "B C"], Bool[Tensor, "B C"], Float[Tensor, "B C"], Float[Tensor, "B C"]]:
    """Completion ids, mask, sampler log-probs and kept mass. Finished rows get the pad id, mask False and 0s."""
    generator = torch.Generator().manual_seed(recipe.seed)
    filters = _filters(recipe)
    eos = torch.tensor(sorted(policy.eos_ids))
    alive = torch.ones(len(prompt_ids), dtype=torch.bool)
    mask, ids, cache, columns = prompt_mask, prompt_ids, None, []
    for _ in range(recipe.max_completion_length):
        hidden, cache = policy.extend(ids, mask, position_ids(mask)[:, -ids.shape[1] :], cache)
        logprobs = log_softmax(policy.project(hidden[:, -1]), recipe.temperature)
        if logprobs.isnan().any():
            raise ValueError(f"model: {policy.name!r} gives logits that are not finite; have its weights run away?")
        filtered = filters(ids, logprobs)
        chosen = torch.multinomial(filtered.softmax(-1), 1, generator=generator).squeeze(1)
        kept = filtered.exp().sum(-1).clamp(max=1.0)
        columns.append((torch.where(alive, chosen, policy.pad_id), alive, alive * gather(logprobs, chosen), alive * kept))
        mask = torch.cat([mask, alive.unsqueeze(1)], dim=1)
        ids = columns[-1][0].unsqueeze(1)
        alive = alive & ~torch.isin(chosen, eos)
        if not alive.any():
            break
    completion_ids, completion_mask, sampler_logprobs, kept_mass = (
        torch.stack(column, dim=1) for column in zip(*columns, strict=True)
    )
    return completion_ids, completion_mask, sampler_logprobs, kept_mass


def _filters(recipe: Recipe) -> LogitsProcessorList:
    filters = LogitsProcessorList()
    if recipe.top_k:
        filters.append(TopKLogitsWarper(top_k=recipe.top_k))
    if recipe.top_p < 1:
        filters.append(TopPLogitsWarper(top_p=recipe.top_p))
    return filters


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
