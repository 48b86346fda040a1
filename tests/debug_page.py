"""The Debug page without a browser: what its tests share."""

import torch

from grpo_core import Batch
from lessons.debug import handlers


def opened(path, wanted):
    return finished(handlers.upload(str(path), wanted)[0])


def finished(wanted):
    return handlers.show(handlers.finish(wanted), [], wanted)


def panel(page, kind):
    return next(p for section in page["sections"] for p in section["panels"] if p["kind"] == kind)


def checks_of(page):
    return {item["check"]: item["severity"] for item in panel(page, "finding_list")["findings"]}


def large(rows: int, width: int) -> Batch:
    """Many rows and tokens, made by a formula."""
    place = torch.arange(rows * width).view(rows, width)
    lengths = 1 + torch.arange(rows) * 37 % width
    mask = torch.arange(width) < lengths.unsqueeze(1)
    old = -((place % 97) / 50.0)
    return Batch(
        prompt_ids=torch.full((rows, 4), 5), prompt_mask=torch.ones(rows, 4, dtype=torch.bool), completion_ids=place % 1000,
        completion_mask=mask, old_logprobs=old, policy_logprobs=old + (place % 13) / 100.0, ref_logprobs=old - 0.1,
        sampler_logprobs=old, rewards=(torch.arange(rows) % 2).float().unsqueeze(1), group_ids=torch.arange(rows) // 8,
        advantages=(torch.arange(rows) % 2) * 2.0 - 1.0, meta={"framework": "trl", "vocab_size": 1000},
    )  # fmt: skip
