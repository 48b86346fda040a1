"""A group scored as one row: its prompt once, its completions side by side behind it.

    prompt prompt prompt | a a a a | b b | c c c        ids of one pack
      0      1      2      3 4 5 6   3 4   3 4 5        positions: those that each token has in its own row

A token sees the prompt and what stands before it in its own completion; the mask is additive and 4-D, so every attention
implementation that takes one gives the states of the padded rows. Nothing that no trained token needs is read: no padding,
no last token of a completion, no second copy of a prompt. A long group is split, small groups share a pack, as the cost
model says. Whether a model really gives the same log-probs this way is proven before it is used (`choose_scoring`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .blocks import BLOCK_COST, Block, additive, blocks_of, with_masks
from .types import Batch

ROUNDS = 3  # the first one warms up
LARGEST_GAP = 1e-4  # nats between packed and padded log-probs; rounding gives 1e-5
OVERHEAD = {"cpu": 64, "cuda": 4096}  # tokens that cost as much as starting one forward pass


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One row of S tokens, and where the tokens it scores are predicted."""

    ids: Int[Tensor, "1 S"]
    positions: Int[Tensor, "1 S"]
    allowed: Bool[Tensor, "S S"]  # query, key
    slots: Int[Tensor, " N"]  # the slot that predicts each trained token, row by row in the order of `rows`
    rows: tuple[int, ...]  # of the batch
    blocks: tuple[Block, ...]  # for an attention that multiplies only what is seen; none: one mask over all


@dataclass(frozen=True)
class Row:
    """What one row of the batch brings to a pack."""

    row: int
    completion: Int[Tensor, " C"]  # up to its last trained token
    trained: Int[Tensor, " N"]  # places of the trained tokens in the completion


Part = tuple[tuple[int, ...], list[Row]]  # a prompt and rows of it


def rows_by_prompt(batch: Batch) -> dict[tuple[int, ...], list[Row]]:
    """The rows that have a trained token, behind their prompts; equal prompts are one, whatever their group."""
    ids, real, completion = (t.cpu() for t in (batch.row_ids(), batch.row_mask(), batch.row_completion_mask()))
    positions, mask = batch.token_positions().cpu(), batch.trained_mask().cpu()
    trained = torch.zeros_like(real)
    trained[:, positions] = mask
    groups = defaultdict(list)
    for row in mask.any(1).nonzero().squeeze(1).tolist():
        answer, prompt = ids[row, completion[row] & real[row]], ids[row, ~completion[row] & real[row]]
        places = trained[row, completion[row] & real[row]].nonzero().squeeze(1)
        groups[tuple(prompt.tolist())].append(Row(row, answer[: int(places[-1]) + 1], places))
    return groups


# ---- which rows share a pack -----------------------------------------------------------------------------------------------
def pack_cost(parameters: int, width: int, layers: int, device: str) -> Callable[[int], float]:
    """Multiply-adds of a forward pass over a pack of so many tokens: linear layers, attention over its square, start."""
    overhead = OVERHEAD.get(device, OVERHEAD["cuda"])
    return lambda tokens: (tokens + overhead) * parameters + 2 * layers * width * tokens**2


def split(prompt: int, rows: Sequence[Row], cost: Callable[[int], float]) -> list[list[Row]]:
    """One prompt's rows, in as many packs as is cheapest: each pack reads the prompt again, but attention is quadratic."""
    rows = sorted(rows, key=lambda row: len(row.completion))  # rows of like length together
    mean = sum(len(row.completion) for row in rows) / len(rows)
    cheapest = min(range(1, len(rows) + 1), key=lambda packs: packs * cost(prompt + round(mean * len(rows) / packs)))
    size = math.ceil(len(rows) / cheapest)
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def plan(
    groups: dict[tuple[int, ...], list[Row]], cost: Callable[[int], float]
) -> list[list[tuple[tuple[int, ...], list[Row]]]]:
    """Packs, each a list of (prompt, its rows): long groups split, small ones merged while that costs less than a start."""

    def tokens(part) -> int:
        return len(part[0]) + sum(len(row.completion) - 1 for row in part[1])

    parts = [(prompt, rows) for prompt, all_rows in groups.items() for rows in split(len(prompt), all_rows, cost)]
    packs: list[tuple[int, list]] = []
    for part in sorted(parts, key=tokens):
        size = tokens(part)
        if packs and cost(packs[-1][0] + size) < cost(packs[-1][0]) + cost(size):
            packs[-1] = (packs[-1][0] + size, [*packs[-1][1], part])
        else:
            packs.append((size, [part]))
    return [parts for _, parts in packs]


# ---- one pack --------------------------------------------------------------------------------------------------------------
def build(parts: list[Part], device: torch.device, width: int = 1, block_cost: float | None = None) -> Pack:
    """Ids, positions, mask, slots and blocks of one pack."""
    ids, positions, segment, parent, slots, numbers = [], [], [], [], [], []
    filled = segments = 0
    for prompt, rows in parts:
        start, root = filled, segments
        ids.append(torch.tensor(prompt))
        positions.append(torch.arange(len(prompt)))
        segment += [root] * len(prompt)
        parent += [root] * len(prompt)
        filled, segments = filled + len(prompt), segments + 1
        for row in rows:
            read = len(row.completion) - 1  # nothing trained stands behind the last one
            slots.append(torch.where(row.trained == 0, start + len(prompt) - 1, filled + row.trained - 1))
            ids.append(row.completion[:-1])
            positions.append(len(prompt) + torch.arange(read))
            segment += [segments] * read
            parent += [root] * read
            filled, segments = filled + read, segments + 1
            numbers.append(row.row)
    own, root = torch.tensor(segment, device=device), torch.tensor(parent, device=device)
    lengths = [(len(prompt), [len(row.completion) - 1 for row in rows]) for prompt, rows in parts]
    same = (own.unsqueeze(1) == own) | (root.unsqueeze(1) == own)
    return Pack(
        ids=torch.cat(ids).unsqueeze(0).to(device), positions=torch.cat(positions).unsqueeze(0).to(device),
        allowed=same.tril(), slots=torch.cat(slots).to(device), rows=tuple(numbers),
        blocks=blocks_of(lengths, width, block_cost),
    )  # fmt: skip


def packs_of(policy, batch: Batch) -> list[Pack]:
    config, groups = policy.model.config.get_text_config(), rows_by_prompt(batch)
    cost = pack_cost(policy.body_parameters, config.hidden_size, config.num_hidden_layers, policy.device.type)
    planned = [list(groups.items())] if policy.one_pack else plan(groups, cost)
    return [build(parts, policy.device, config.hidden_size, policy.block_cost) for parts in planned]


def packed_states(policy, batch: Batch) -> Float[Tensor, "N D"]:
    """The last hidden states that predict the batch's trained tokens, row by row: what `logprobs.select` takes out of the
    padded pass, from packs."""
    packs = packs_of(policy, batch)
    counts = batch.trained_mask().sum(1).tolist()
    pieces: dict[int, Tensor] = {}
    for pack in packs:
        blocks = {"blocks": with_masks(pack.blocks, pack.allowed, policy.dtype)} if pack.blocks else {}
        hidden = policy.hidden_packed(pack.ids, pack.positions, additive(pack.allowed, policy.dtype), **blocks)[0]
        pieces |= zip(pack.rows, hidden[pack.slots].split([counts[row] for row in pack.rows]), strict=True)
    return torch.cat([pieces[row] for row in sorted(pieces)])


# ---- may it be used? -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a policy scores from now on, and why."""

    packed: bool
    reason: str
    gap: float = math.nan  # largest difference of a log-prob between the two, nats
    seconds: tuple[float, float] = (math.nan, math.nan)  # a forward pass padded, packed
    block_cost: float | None = None  # where attention goes block by block: multiply-adds of one more call

    def use(self, policy) -> None:
        policy.packed, policy.block_cost = self.packed, self.block_cost


def why_padded(policy, batch: Batch) -> str | None:
    """What stands against packing before anything is computed; None if nothing does."""
    if not policy.takes_positions:
        return "the model takes no position ids"
    config = policy.model.config.get_text_config()
    window, longest = getattr(config, "sliding_window", None), int(batch.row_mask().sum(1).max())
    if window and getattr(config, "use_sliding_window", True) and longest > window:
        return f"rows of {longest} tokens are longer than the model's sliding window of {window}"
    return None


@torch.no_grad()
def choose_scoring(policy, batch: Batch, temperature: float, wanted: str = "auto") -> Scoring:
    """Prove packing on a batch and have the policy use it where it is right and, with "auto", faster.

    `wanted`: padded, packed (raises ValueError where it is not right) or auto. The reason is one line for the log. Where the
    blocks of `blocks` are what goes wrong, one mask over the pack is tried.
    """
    found = Scoring(packed=False, reason="padded, as asked for")
    if wanted != "padded":
        found = _tried(policy, batch, temperature, wanted, by_block=policy.takes_blocks)
        if not found.packed and policy.takes_blocks and "packing is" not in found.reason:
            found = _tried(policy, batch, temperature, wanted, by_block=False)
    found.use(policy)
    if wanted == "packed" and not found.packed:
        raise ValueError(f"scoring: found 'packed', but {found.reason.removeprefix('padded: ')}; allowed here: padded")
    return found


def _tried(policy, batch: Batch, temperature: float, wanted: str, by_block: bool) -> Scoring:
    if why := why_padded(policy, batch):
        return Scoring(packed=False, reason=f"padded: {why}")
    cost = BLOCK_COST.get(policy.device.type, BLOCK_COST["cuda"]) if by_block else None
    try:
        gap, seconds = _both_ways(policy, batch, temperature, cost)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0][:120]
        return Scoring(packed=False, reason=f"padded: the model refuses a packed group ({why})")
    if not gap <= LARGEST_GAP:
        why = f"the log-probs of a packed group differ by {gap:.2g} nats, allowed: {LARGEST_GAP:g}"
        return Scoring(packed=False, reason=f"padded: {why}", gap=gap, seconds=seconds)
    packed = wanted == "packed" or seconds[1] < seconds[0]
    ratio = f"packing is {seconds[0] / seconds[1]:.1f} x as fast, gap {gap:.1e}"
    reason = f"{'packed' if packed else 'padded'}: {ratio}"
    return Scoring(packed=packed, reason=reason, gap=gap, seconds=seconds, block_cost=cost if packed else None)


def _both_ways(policy, batch: Batch, temperature: float, block_cost: float | None) -> tuple[float, tuple[float, float]]:
    """The largest gap between a log-prob padded and packed, and the shortest time of each: in turns, for whatever else the
    machine does. The first turn, which warms up, cuts as many blocks as there are."""
    from .logprobs import score_tokens  # which calls this file

    gap, seconds = 0.0, [math.inf, math.inf]
    for turn in range(ROUNDS):
        policy.block_cost = 0.0 if block_cost is not None and turn == 0 else block_cost
        logprobs = []
        for policy.packed in (False, True):
            start = time.perf_counter()
            logprobs.append(score_tokens(policy, batch, temperature).logprobs)
            if logprobs[-1].is_cuda:
                torch.cuda.synchronize(logprobs[-1].device)
            seconds[policy.packed] = min(seconds[policy.packed], time.perf_counter() - start)
        gap = max(gap, float((logprobs[1] - logprobs[0]).abs().nan_to_num(math.inf).max()))
    return gap, (seconds[0], seconds[1])
