"""What a run asks of a sampler. `Sampler` is this package's own; the others are held against the policy at the start."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import Recipe
from ..engine import Engine
from ..policy import Policy
from ..rollout import encode_prompts, generate
from ..types import Batch

Drawn = tuple[Tensor, Tensor, Tensor, Tensor]  # what `rollout.generate` returns
PROVEN = (4, 16)  # rows and tokens of the proof
GAP = 0.1  # nats; weights in bfloat16 are 0.01 to 0.03 away from fp32 ones, other weights or another temperature 0.3 and more


class Sampler:
    """This package's own: on the weights of the process, which `load_policy` has proven."""

    def __init__(self, config: Any, engine: Engine):
        """`config` is the run's. Raises ValueError where the sampler cannot be had, before anything is loaded."""
        self.config, self.engine = config, engine

    def prove(self, policy: Policy, version: int) -> None:
        """Raises ValueError where the sampler does not draw from this policy as it is now."""

    @contextmanager
    def following(self, policy: Policy, version: int) -> Iterator[None]:
        """Inside, completions come from these weights; every process is to enter. They differ where `version` does."""
        with self.engine.whole_weights(policy):
            yield

    def generate(self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, recipe: Recipe, draws: Tensor) -> Drawn:
        """`rollout.generate`: B / N rows for each of the N prompts, where B is the number of rows of `draws`."""
        return generate(policy, prompt_ids, prompt_mask, recipe, draws)


class OtherEngine(Sampler, ABC):
    """A sampler that is not this package's own code. It gives ids and log-probs row by row, over the full vocabulary at the
    sampling temperature: without top-k and top-p, what it drew from is all there is, and the kept mass is 1."""

    @abstractmethod
    def rows(
        self, policy: Policy, prompts: list[list[int]], recipe: Recipe, draws: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        """Ids and log-probs of each row, up to its EOS. `prompts` are the ids of each prompt, without padding."""

    def generate(self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, recipe: Recipe, draws: Tensor) -> Drawn:
        prompts = [ids[mask].tolist() for ids, mask in zip(prompt_ids, prompt_mask, strict=True)]
        rows, failure = [], ""
        try:
            rows = self.rows(policy, prompts, recipe, draws)
            for ids, logprobs in rows:
                _refuse(self.config.sampler, policy, ids, logprobs, recipe.max_completion_length)
        except ValueError as error:
            failure = str(error)
        if failures := list(filter(None, self.engine.everyones([failure]))):  # no process waits for one that has ended
            raise ValueError(failures[0])
        assert len(rows) == len(draws)
        return _tensors_of(policy, rows)

    @torch.no_grad()
    def prove(self, policy: Policy, version: int) -> None:
        """Draws a few rows and scores them: their log-probs have to agree, up to the precision that the weights are read in.
        Whatever is wrong shows here: another model, weights that did not arrive, log-probs at another temperature."""
        count, longest = PROVEN
        recipe = replace(self.config, max_completion_length=min(longest, self.config.max_completion_length))
        ids, mask = encode_prompts(policy, ("Say something.",), recipe)
        draws = torch.rand(count, recipe.max_completion_length, generator=torch.Generator().manual_seed(recipe.seed))
        with self.following(policy, version):
            drawn, drawn_mask, logprobs, _ = self.generate(policy, ids, mask, recipe, draws)
        batch = Batch(
            prompt_ids=ids.repeat_interleave(count, 0), prompt_mask=mask.repeat_interleave(count, 0),
            completion_ids=drawn, completion_mask=drawn_mask,
        )  # fmt: skip
        scored = self.engine.score(policy, batch, recipe.temperature).logprobs
        gaps = (scored - logprobs).abs()[drawn_mask].double()
        total, number = self.engine.total(torch.tensor([float(gaps.sum()), float(len(gaps))])).tolist()
        if not total / number <= GAP:
            raise ValueError(
                f"sampler: found {self.config.sampler!r} with log-probs that are {total / number:.3g} nats away from those of "
                f"{policy.name!r}, allowed: {GAP}; does it draw from that model?"
            )


def _refuse(sampler: str, policy: Policy, ids: list[int], logprobs: list[float], longest: int) -> None:
    """What no row may be."""
    wrong = ""
    if not 1 <= len(ids) <= longest or len(ids) != len(logprobs):
        wrong = f"{len(ids)} tokens with {len(logprobs)} log-probs, allowed: 1 to {longest} of both"
    elif max(ids) >= policy.vocab_size:
        wrong = f"the token {max(ids)}, allowed: below {policy.vocab_size} (it serves another model)"
    elif any(token in policy.eos_ids for token in ids[:-1]):
        wrong = "tokens behind an EOS, allowed: none"
    elif ids[-1] not in policy.eos_ids and len(ids) < longest:
        wrong = f"a row of {len(ids)} tokens without an EOS, allowed: {longest} (was it stopped?)"
    if wrong:
        raise ValueError(f"sampler: {sampler!r} gave {wrong}")


def _tensors_of(policy: Policy, rows: list[tuple[list[int], list[float]]]) -> Drawn:
    """Rows side by side as `rollout.generate` returns them: ids, mask, log-probs and kept mass."""
    lengths = torch.tensor([len(ids) for ids, _ in rows], device=policy.device)
    mask = torch.arange(int(lengths.max()), device=policy.device) < lengths.unsqueeze(1)
    ids = torch.full(mask.shape, policy.pad_id, device=policy.device)
    logprobs = torch.zeros(mask.shape, dtype=torch.promote_types(policy.dtype, torch.float32), device=policy.device)
    ids[mask] = torch.tensor([token for row, _ in rows for token in row], device=policy.device)
    logprobs[mask] = torch.tensor([value for _, row in rows for value in row], dtype=logprobs.dtype, device=policy.device)
    return ids, mask, logprobs, mask.to(logprobs.dtype)


def seed_of(draws: Tensor) -> int:
    """A seed out of a row's, or some rows', uniform numbers: the same rows, the same seed, on however many processes."""
    parts = (float(draws[0, 0]), float(draws[-1, -1]))
    return int(parts[0] * 2**24) * 2**24 + int(parts[1] * 2**24)  # a float32 below 1 out of torch.rand has 24 bits
