"""Does it learn, and how fast beside TRL: `python tests/benchmarks/bench_learning.py [STEPS [SEED ...]]`.

The built-in model on fresh sums, 32 prompts x 8 completions a step, AdamW 3e-4, no KL, one thread each; TRL 1.16 with the
same settings, the same questions, the same rewards and the same seed. What it printed on two cores is in `learning.csv`. One
after the other, seed by seed; the clock starts
with the first step. Printed as CSV: trainer, seed, step, seconds since the start, share of right answers among the step's
own samples. Then, on stderr, when ten steps together were first right nine times in ten, and who is how far at the same time.
"""

import random
import sys
import tempfile
import time

import peer  # noqa: F401  # paths and offline switches
import torch

from grpo_core.loading import BUILT_IN
from grpo_core.tasks import correct, format_ok
from grpo_core.tiny.questions import draw_question
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

STEPS, *SEEDS = map(int, sys.argv[1:] or (120, 0, 1, 2))
PROMPTS, ROWS, RATE, WIDTH = 32, 8, 3e-4, 24
Curve = list[tuple[float, float]]  # seconds since the start, share of right answers


def ours(seed: int) -> Curve:
    config = TrainConfig(
        steps=STEPS, prompts_per_step=PROMPTS, group_size=ROWS, learning_rate=RATE, max_completion_length=WIDTH, threads=1,
        seed=seed,
    )  # fmt: skip
    trainer = Trainer(config)
    start, curve = time.perf_counter(), []
    for record in trainer.run():
        curve.append((time.perf_counter() - start, record.metrics["reward/correct"]))
    return curve


def trls(seed: int) -> Curve:
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    source = random.Random(seed)
    questions = [draw_question(source).text for _ in range(STEPS * PROMPTS)]
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in questions]})

    def asked(prompts) -> list[str]:
        return [prompt[-1]["content"] for prompt in prompts]

    def right(prompts, completions, **_) -> list[float]:
        return [correct(p, c[0]["content"], "stop") for p, c in zip(asked(prompts), completions, strict=True)]

    def formed(prompts, completions, **_) -> list[float]:
        return [format_ok(p, c[0]["content"], "stop") for p, c in zip(asked(prompts), completions, strict=True)]

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=PROMPTS * ROWS,
        num_generations=ROWS, max_completion_length=WIDTH, learning_rate=RATE, lr_scheduler_type="constant", beta=0.0,
        max_steps=STEPS, logging_steps=1, save_strategy="no", gradient_checkpointing=False, loss_type="grpo",
        reward_weights=[1.0, 0.2], weight_decay=0.0, disable_tqdm=True, seed=seed,
    )  # fmt: skip
    start, curve = time.perf_counter(), []

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "rewards/right/mean" in logs:
                curve.append((time.perf_counter() - start, logs["rewards/right/mean"]))

    trainer = GRPOTrainer(
        model=str(BUILT_IN["tiny"]), reward_funcs=[right, formed], args=args, train_dataset=data, callbacks=[Watch()]
    )
    trainer.remove_callback(PrinterCallback)
    torch.set_num_threads(1)
    start = time.perf_counter()
    trainer.train()
    return curve


def at(curve: Curve, seconds: float) -> float:
    """The mean of the ten newest steps by then."""
    done = [share for moment, share in curve if moment <= seconds][-10:]
    return sum(done) / max(1, len(done))


def reached(curve: Curve, share: float) -> str:
    """When ten steps together first had this share."""
    for place in range(10, len(curve) + 1):
        if sum(right for _, right in curve[place - 10 : place]) >= 10 * share:
            return f"{curve[place - 1][0]:.0f} s (step {place})"
    return "never"


def main() -> None:
    print("trainer,seed,step,seconds,right")
    for seed in SEEDS or [0]:
        curves = {"grpo_core": ours(seed), "TRL": trls(seed)}
        for name, curve in curves.items():
            for step, (seconds, right) in enumerate(curve, start=1):
                print(f"{name},{seed},{step},{seconds:.1f},{right:.3f}")
            print(f"seed {seed} {name}: 90 % right after {reached(curve, 0.9)}", file=sys.stderr)
        end = min(curve[-1][0] for curve in curves.values())
        for moment in (end / 4, end / 2, end):
            shares = "  ".join(f"{name} {at(curve, moment):.3f}" for name, curve in curves.items())
            print(f"seed {seed} after {moment:.0f} s: {shares}", file=sys.stderr)


if __name__ == "__main__":
    main()
