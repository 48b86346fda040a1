"""Sampling a group, and a whole step, of SmolLM2-135M against TRL: `python tests/benchmarks/bench_sampling.py`.

A chat prompt of about 128 tokens, 8 completions of at most 64 tokens, T = 1, fp32. Sampling: transformers' `generate` with the
configuration that TRL hands it. Step: TRL's own way from the prompt to the optimizer's step. Seconds per sampled token as
well: the two do not draw the same texts, and a text may end early.
"""

import statistics
from functools import partial

import torch
from peer import interleaved, median_ratio, seconds_in, smollm2, trl_trainer

from grpo_core import Recipe, grpo_step, load_policy, sample, to_batch
from grpo_core.memory import keep_freed_memory
from grpo_core.packing import choose_scoring
from grpo_core.step import make_optimizer
from grpo_core.types import Rollout

ROUNDS, ROWS, WIDTH = 3, 8, 64
PROMPT = (
    "Anna keeps a small shop near the harbour. On Monday she sells seven jars of honey, four loaves of bread and a dozen eggs. "
    "On Tuesday it rains, so that only three people come, and each of them takes one jar of honey and nothing else. On "
    "Wednesday a bakery orders five more jars, and her neighbour brings two empty jars back, which she counts as well. "
    "How many jars of honey has she sold by Wednesday evening? Say the number first, then one short sentence."
)
RECIPE = Recipe(
    prompts=(PROMPT,), group_size=ROWS, max_completion_length=WIDTH, learning_rate=1e-6, updates=1, beta=0.0,
    aggregation="token-mean", edited_rewards=tuple((row, place, float(row % 3)) for row in range(ROWS) for place in range(2)),
)  # fmt: skip


class Ours:
    """This package on the prompt; `bf16`: products in bfloat16, as `autocast = true` has them."""

    def __init__(self, bf16: bool = False):
        keep_freed_memory()  # as the train command does
        self.products = partial(torch.autocast, "cpu", torch.bfloat16, enabled=bf16)
        self.policy = load_policy(smollm2())
        rollout = sample(self.policy, RECIPE.prompts, RECIPE)
        print(choose_scoring(self.policy, to_batch(rollout, "prompt_completion"), 1.0).reason)
        self.optimizer = make_optimizer(self.policy, RECIPE)

    def draw(self) -> Rollout:
        with self.products():
            return sample(self.policy, RECIPE.prompts, RECIPE)

    def sample(self) -> int:
        return int(self.draw().completion_mask.sum())

    def step(self) -> None:
        rollout = self.draw()
        with self.products():
            grpo_step(self.policy, None, rollout, RECIPE, self.optimizer, keep_hidden=False)


class Trls:
    """TRL on the same."""

    def __init__(self):
        policy = load_policy(smollm2())
        self.trainer, self.eos = trl_trainer(smollm2(), ROWS, WIDTH), torch.tensor(sorted(policy.eos_ids))
        self.ids = torch.tensor([policy.encode(PROMPT)] * ROWS)
        self.optimizer = torch.optim.AdamW(self.trainer.model.parameters(), lr=RECIPE.learning_rate, fused=True)  # its default

    @torch.no_grad()
    def sample(self) -> int:
        model, how = self.trainer.model.eval(), self.trainer.generation_config
        out = model.generate(
            input_ids=self.ids, attention_mask=torch.ones_like(self.ids), generation_config=how, disable_compile=True
        )
        model.train()
        ends = torch.isin(out[:, self.ids.shape[1] :], self.eos).long().cumsum(1)
        before = torch.nn.functional.pad(ends, (1, 0))[:, :-1]  # the end itself is sampled, what stands behind it is padding
        return int((before == 0).sum())

    def step(self) -> None:
        asked = [{"prompt": [{"role": "user", "content": PROMPT}]}] * ROWS
        inputs = self.trainer._generate_and_score_completions(asked)
        inputs["advantages"] = torch.linspace(-1, 1, ROWS)
        self.optimizer.zero_grad()
        self.trainer.compute_loss(self.trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(self.trainer.model.parameters(), 1.0)
        self.optimizer.step()


def built(kind: type, what: str):
    return getattr(kind(), what)


def main() -> None:
    for what in ("sample", "step"):
        calls = interleaved({"TRL": partial(built, Trls, what), "grpo_core": partial(built, Ours, what)}, ROUNDS)
        seconds = {name: seconds_in(made) for name, made in calls.items()}
        for name, values in seconds.items():
            print(f"{what:6} {name:10} {statistics.median(values):6.2f} s (median of {ROUNDS})")
        ratio = median_ratio(seconds["TRL"], seconds["grpo_core"])
        print(f"{what:6} TRL / grpo_core  {ratio:.2f} (median of pairs)", flush=True)
        if what == "sample":
            counts = {name: [call.result for call in made] for name, made in calls.items()}
            print("tokens sampled", counts)
            each = {name: [s / n for s, n in zip(seconds[name], counts[name], strict=True)] for name in seconds}
            print(f"per sampled token  TRL / grpo_core  {median_ratio(each['TRL'], each['grpo_core']):.2f}", flush=True)


if __name__ == "__main__":
    main()
