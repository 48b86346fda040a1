"""Attention of a pack, block by block: only what a token may see is multiplied.

One mask over a pack of S tokens costs S x S products, most of which it then hides: a completion sees its prompt and itself,
never its neighbours. Here a pack is cut into blocks, a prompt or some completions of it; each block's queries meet the keys
of its prompt and their own. The states are those of the whole mask up to rounding; `packing.choose_scoring` proves it.

    keys     prompt | a a b b | c c c          queries a, b: prompt + a, b      queries c: prompt + c
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

BLOCK_COST = {"cpu": 1e7, "cuda": 1e9}  # multiply-adds that cost as much as one more call of attention


@dataclass(frozen=True)
class Block:
    """Tokens `start` to `end` of a pack, and the prompt before them that they see: empty where they are a prompt."""

    start: int
    end: int
    prompt: tuple[int, int]

    @property
    def keys(self) -> int:
        return self.prompt[1] - self.prompt[0] + self.end - self.start


def blocks_of(parts: Sequence[tuple[int, Sequence[int]]], width: int, block_cost: float | None) -> tuple[Block, ...]:
    """Cuts a pack of (tokens of a prompt, tokens of each completion behind it) where that is cheaper than one mask over it;
    else none. `width`: numbers of a token's queries; `block_cost` None: never."""
    if block_cost is None:
        return ()
    size = math.sqrt(block_cost / (2 * width))  # longer blocks multiply more among their own, shorter ones are more calls
    found, filled = [], 0
    for prompt, completions in parts:
        seen, start = (filled, filled + prompt), filled + prompt
        found.append(Block(filled, start, (filled, filled)))
        filled = start
        for place, completion in enumerate(completions, start=1):
            filled += completion
            if filled > start and (filled - start >= size or place == len(completions)):
                found.append(Block(start, filled, seen))
                start = filled
    cost = sum(2 * width * (block.end - block.start) * block.keys + block_cost for block in found)
    return tuple(found) if cost < 2 * width * filled**2 + block_cost else ()


def takes_blocks(body: torch.nn.Module) -> bool:
    """Whether the model hands what it does not know on to transformers' sdpa attention."""
    kinds = {parameter.kind for parameter in inspect.signature(body.forward).parameters.values()}
    implementation = getattr(body.config, "_attn_implementation", None)
    return implementation == "sdpa" and inspect.Parameter.VAR_KEYWORD in kinds


Masked = tuple[Block, Tensor | None]  # its mask [1 1 Q K], additive; None: each token sees those before it


def with_masks(blocks: Sequence[Block], allowed: Bool[Tensor, "S S"], dtype: torch.dtype) -> list[Masked]:
    """Each block with its cut of the pack's mask, additive."""
    return [(block, additive(_cut(block, allowed), dtype) if block.prompt[0] < block.prompt[1] else None) for block in blocks]


def _cut(block: Block, allowed: Bool[Tensor, "S S"]) -> Bool[Tensor, "Q K"]:
    rows = allowed[block.start : block.end]
    return torch.cat([rows[:, slice(*block.prompt)], rows[:, block.start : block.end]], dim=1)


def additive(allowed: Bool[Tensor, "Q K"], dtype: torch.dtype) -> Float[Tensor, "1 1 Q K"]:
    """0 where a query sees a key, the lowest number where it does not."""
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill(~allowed, torch.finfo(dtype).min)[None, None]


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    *args: Any, blocks: Sequence[Masked] = (), **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' sdpa attention, and that very function where no blocks are handed in. Queries [1 H S d], keys and values
    [1 H' S d]; out: [1 S H d]."""
    if not blocks:
        return sdpa_attention_forward(module, query, key, value, attention_mask, *args, **kwargs)
    sizes = [block.end - block.start for block, _ in blocks]
    places = {block.start: place for place, (block, _) in enumerate(blocks)}
    queries, keys, values = (states.split(sizes, dim=2) for states in (query, key, value))
    out = []
    for place, (block, mask) in enumerate(blocks):
        seen = [place] if mask is None else [places[block.prompt[0]], place]
        own_keys, own_values = (torch.cat([pieces[p] for p in seen], dim=2) for pieces in (keys, values))
        out.append(sdpa_attention_forward(module, queries[place], own_keys, own_values, mask, *args, **kwargs)[0])
    return torch.cat(out, dim=1), None


AttentionInterface.register("sdpa", attend)
