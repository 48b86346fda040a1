"""transformers' continuous batching: rows of any length share one batch, and a finished row makes room for the next.

Read in transformers 5.24 (`generation/continuous_batching/`). `return_logprobs` gives the log of the softmax that the token
was drawn from, behind temperature, top-k and top-p (`ModelRunner._sample`): over the full vocabulary where only the
temperature is set, so only that is offered. A seed makes a process's rows the same again, but each depends on which rows are
sampled beside it: on the number of processes. It runs in a thread of its own, which no autocast reaches.

Only flash attention keeps the rows of a batch apart; without it each row is multiplied with all others' keys and masked.
"""

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from ..config import Recipe
from ..policy import Policy, first_line
from .sampler import OtherEngine, seed_of

PAGE, AT_ONCE = 256, 1024  # tokens of a page of the cache; tokens read at a time, on a CPU


class ContinuousBatching(OtherEngine):
    """On the weights of the process, like the own one."""

    def rows(
        self, policy: Policy, prompts: list[list[int]], recipe: Recipe, draws: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        how = GenerationConfig(
            max_new_tokens=recipe.max_completion_length, do_sample=True, temperature=recipe.temperature, top_k=0, top_p=1.0,
            eos_token_id=sorted(policy.eos_ids), pad_token_id=policy.pad_id,
        )  # fmt: skip
        asked = [ids for ids in prompts for _ in range(len(draws) // len(prompts))]
        device = policy.device
        batching = ContinuousBatchingConfig(return_logprobs=True, seed=seed_of(draws), page_size=PAGE)
        if device.type == "cpu":  # left to itself it takes most of the memory that is free, and a while to do so
            pages = sum(-(-(len(ids) + recipe.max_completion_length) // PAGE) + 1 for ids in asked)
            batching.num_blocks, batching.max_batch_tokens = pages, AT_ONCE
        base = getattr(policy.model, "get_base_model", None)  # PEFT's layers stay in place
        model = base() if base else policy.model
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):  # it sets torch's own seed
            try:
                found = list(model.generate_batch(asked, generation_config=how, continuous_batching_config=batching).values())
            except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"sampler: continuous batching refuses {policy.name!r} ({first_line(error)})") from error
        errors = [row.error for row in found if row.error]
        if errors or len(found) != len(asked):
            why = errors[0] if errors else f"{len(asked) - len(found)} of {len(asked)} rows are missing"
            raise ValueError(f"sampler: continuous batching of {policy.name!r} ended early ({str(why).splitlines()[0][:200]})")
        return [(row.generated_tokens, row.logprobs) for row in found]
