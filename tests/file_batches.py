"""Batch files that lack something, or hold something odd: what the lessons must show as it is."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from grpo_core.types import Batch

ROWS, PROMPT, WIDTH, VOCABULARY = 4, 3, 5, 12
PER_TOKEN = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy")
OPTIONAL = (*PER_TOKEN, "logits", "rewards", "advantages", "group_ids", "finish_reasons")


def whole(layout: str = "prompt_completion", seed: int = 0) -> Batch:
    """A batch that holds everything, all of it drawn at random."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 2, 4, 1]).unsqueeze(1)
    mask = torch.arange(WIDTH) < lengths
    ids = torch.randint(3, VOCABULARY, (ROWS, PROMPT + WIDTH), generator=random)
    prompt_mask = torch.arange(PROMPT) >= torch.tensor([0, 1, 0, 2]).unsqueeze(1)
    logits = torch.randn(ROWS, PROMPT + WIDTH, VOCABULARY, generator=random)
    policy = -3 * torch.rand(ROWS, WIDTH, generator=random)
    near = {name: policy + 0.3 * torch.randn(ROWS, WIDTH, generator=random) for name in PER_TOKEN}
    near |= {"policy_logprobs": policy, "entropy": near["entropy"].abs()}
    batch = Batch(
        prompt_ids=ids[:, :PROMPT], prompt_mask=prompt_mask, completion_ids=ids[:, PROMPT:], completion_mask=mask,
        group_ids=torch.tensor([7, 7, 3, 3]), rewards=torch.tensor([[1.0, 0.5], [0.0, 0.5], [1.0, 0.0], [0.25, 1.0]]),
        reward_names=("right", "form"), reward_weights=torch.tensor([1.0, 0.5]), advantages=torch.tensor([0.7, -0.7] * 2),
        finish_reasons=("length", "stop", "tool", "abort"), logits=logits,
        meta={"eos_token_ids": [2], "pad_token_id": 0, "beta": 0.04, "tokens": {str(i): f"w{i}" for i in range(6)}}, **near,
    )  # fmt: skip
    return batch if layout == "prompt_completion" else as_sequence(batch)


def as_sequence(batch: Batch) -> Batch:
    """The same rows in the other layout."""
    none = torch.zeros_like(batch.prompt_mask)
    wide = {name: torch.nn.functional.pad(getattr(batch, name), (PROMPT - 1, 0)) for name in PER_TOKEN}
    return replace(
        batch, prompt_ids=None, prompt_mask=None, completion_ids=None, completion_mask=None, input_ids=batch.row_ids(),
        attention_mask=batch.row_mask(), response_mask=torch.cat([none, batch.completion_mask], 1), **wide,
    )  # fmt: skip


def without(batch: Batch, *names: str) -> Batch:
    more = {"reward_names": None, "reward_weights": None, "rewards_missing": None} if "rewards" in names else {}
    return replace(batch, **dict.fromkeys(names), **more)


def poisoned(batch: Batch, value: float) -> Batch:
    """Every number that may be any number is this one."""
    real = {f.name: getattr(batch, f.name) for f in fields(batch)}
    kinds = {name: t for name, t in real.items() if isinstance(t, Tensor) and t.is_floating_point()}
    return replace(batch, **{name: torch.full_like(t, value) for name, t in kinds.items()})


def packed() -> Batch:
    """Layout sequence, two short rows in each row, prompts of different lengths right at the left edge."""
    batch = whole("sequence")
    mask = batch.response_mask.clone()
    mask[:, 1:3] = True
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]).expand(ROWS, -1)
    meta = batch.meta | {"packed_boundaries": [[0, 3, 8]] * ROWS}
    return replace(
        batch, response_mask=mask, attention_mask=torch.ones_like(mask), position_ids=positions, meta=meta, finish_reasons=None
    )


def tool_masked() -> Batch:
    batch = whole()
    tool = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    tool[0, 1:3] = False
    return replace(batch, tool_mask=tool)


def odd() -> dict[str, Batch]:
    """Name -> a batch that no step of ours would ever be."""
    base, nothing = whole(), torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    per_token = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3))
    strange = base.completion_ids.clone()
    strange[0, 0], strange[1, 1] = -100, 10**9
    missing = torch.tensor([[True, False], [False, False], [True, True], [False, False]])
    return {
        "packed": packed(), "tool masked": tool_masked(), "nothing trained": replace(base, loss_mask=nothing),
        "no completion": replace(base, completion_mask=nothing), "strange ids": replace(base, completion_ids=strange),
        "tokens differ": replace(base, advantages=per_token), "sequence, tokens differ": as_sequence_of(per_token),
        "rewards missing": replace(base, rewards=base.rewards.masked_fill(missing, torch.nan), rewards_missing=missing),
        "NaN": poisoned(base, float("nan")), "infinite": poisoned(base, float("inf")),
        "-infinite": poisoned(base, -float("inf")), "huge": poisoned(base, 1e30),
        "one row": base.rows(torch.tensor([1])), "bad micro-batches": with_meta(micro_batches=[[0]]),
        "micro-batches": with_meta(micro_batches=[[0, 1], [2, 3]]), "cut rows left out": with_meta(mask_truncated=True),
        "kl in reward": with_meta(kl_in="reward"), "hot": with_meta(temperature=0.0),
        "unknown preset": with_meta(preset="no/such"),
        "bare": without(base, *OPTIONAL), "double": poisoned(base, -0.5), "no group": without(base, "group_ids"),
        "a KL, and no reference": without(base, "ref_logprobs"),
    }  # fmt: skip


def as_sequence_of(per_token: Tensor) -> Batch:
    return replace(whole("sequence"), advantages=torch.nn.functional.pad(per_token, (PROMPT - 1, 0)))


def with_meta(**more) -> Batch:
    batch = whole()
    return replace(batch, meta=batch.meta | more)
