"""Sampling a group, and a whole step, of SmolLM2-135M against TRL: `python tests/benchmarks/bench_sampling.py`.

A chat prompt of about 128 tokens, 8 completions of at most 64 tokens, T = 1, fp32. Sampling: transformers' `generate` with the
configuration that TRL hands it. Step: TRL's own way from the prompt to the optimizer's step. Seconds per sampled token as
well: the two do not draw the same texts, and a text may end early.
"""

import statistics

import torch
from peer import interleaved, median_ratio, smollm2, trl_trainer

from grpo_core import Recipe, grpo_step, load_policy, sample, to_batch
from grpo_core.packing import choose_scoring
from grpo_core.step import make_optimizer

ROUNDS, ROWS, WIDTH = 5, 8, 64
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


def main() -> None:
    policy = load_policy(smollm2())
    trainer = trl_trainer(smollm2(), ROWS, WIDTH)
    prompt = policy.encode(PROMPT)
    ids = torch.tensor([prompt] * ROWS)
    sampled: dict[str, list[int]] = {"grpo_core": [], "generate": []}
    state = {"rollout": sample(policy, RECIPE.prompts, RECIPE)}
    print(
        "prompt tokens", len(prompt), "·", choose_scoring(policy, to_batch(state["rollout"], "prompt_completion"), 1.0).reason
    )
    optimizer = make_optimizer(policy, RECIPE)

    def ours() -> None:
        state["rollout"] = sample(policy, RECIPE.prompts, RECIPE)
        sampled["grpo_core"].append(int(state["rollout"].completion_mask.sum()))

    @torch.no_grad()
    def generate() -> None:
        trainer.model.eval()
        out = trainer.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=trainer.generation_config,
            disable_compile=True,
        )
        trainer.model.train()
        tokens = out[:, len(prompt) :]
        ends = torch.isin(tokens, torch.tensor(sorted(policy.eos_ids))).long().cumsum(1)
        before = torch.nn.functional.pad(ends, (1, 0))[:, :-1]  # the end itself is sampled, what stands behind it is padding
        sampled["generate"].append(int((before == 0).sum()))

    def our_step() -> None:
        grpo_step(policy, None, sample(policy, RECIPE.prompts, RECIPE), RECIPE, optimizer)

    trl_optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6)

    def trl_step() -> None:
        inputs = trainer._generate_and_score_completions([{"prompt": [{"role": "user", "content": PROMPT}]}] * ROWS)
        inputs["advantages"] = torch.linspace(-1, 1, ROWS)
        trl_optimizer.zero_grad()
        trainer.compute_loss(trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trl_optimizer.step()

    for pair in ({"generate": generate, "grpo_core": ours}, {"TRL step": trl_step, "our step": our_step}):
        seconds = interleaved(pair, ROUNDS)
        slow, fast = seconds
        for name, values in seconds.items():
            print(f"{name:10} {statistics.median(values):6.2f} s (median of {ROUNDS})")
        print(f"{slow} / {fast}  {median_ratio(seconds[slow], seconds[fast]):.2f} (median of pairs)")
        if slow == "generate":
            per_token = {name: [s / n for s, n in zip(seconds[name], sampled[name][1:], strict=True)] for name in sampled}
            print("tokens sampled", {name: counts[1:] for name, counts in sampled.items()})
            print(f"per token  {median_ratio(per_token['generate'], per_token['grpo_core']):.2f}")


if __name__ == "__main__":
    main()
