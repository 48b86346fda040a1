"""Does it learn, and how fast beside TRL: `python tests/benchmarks/bench_learning.py [STEPS]`.

The built-in model on fresh sums, 32 prompts x 8 completions a step, AdamW 3e-4, no KL, one thread each; TRL 1.16 with the
same settings, the same questions and the same rewards. Each line: step, seconds since the start, share of right answers
among the step's own samples. Then the right answers at the same number of seconds.
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

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
PROMPTS, ROWS, RATE, WIDTH = 32, 8, 3e-4, 24
Curve = list[tuple[float, float]]  # seconds since the start, share of right answers


def ours() -> Curve:
    config = TrainConfig(
        steps=STEPS, prompts_per_step=PROMPTS, group_size=ROWS, learning_rate=RATE, max_completion_length=WIDTH, threads=1
    )
    start, curve = time.perf_counter(), []
    for record in Trainer(config).run():
        curve.append((time.perf_counter() - start, record.metrics["reward/correct"]))
    return curve


def trls() -> Curve:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    source = random.Random(0)
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
        reward_weights=[1.0, 0.2], weight_decay=0.0, disable_tqdm=True,
    )  # fmt: skip
    start, curve = time.perf_counter(), []

    class Watch(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "rewards/right/mean" in logs:
                curve.append((time.perf_counter() - start, logs["rewards/right/mean"]))

    trainer = GRPOTrainer(
        model=str(BUILT_IN["tiny"]), reward_funcs=[right, formed], args=args, train_dataset=data, callbacks=[Watch()]
    )
    torch.set_num_threads(1)
    start = time.perf_counter()
    trainer.train()
    return curve


def at(curve: Curve, seconds: float) -> float:
    """The mean of the three newest steps by then."""
    done = [share for moment, share in curve if moment <= seconds]
    return sum(done[-3:]) / max(1, len(done[-3:]))


def main() -> None:
    curves = {"grpo_core": ours(), "TRL": trls()}
    for name, curve in curves.items():
        for step in range(0, STEPS, max(1, STEPS // 12)):
            print(f"{name:10} step {step:3}  {curve[step][0]:6.1f} s  right {curve[step][1]:.3f}")
        print(f"{name:10} {STEPS} steps in {curve[-1][0]:.1f} s, right {at(curve, curve[-1][0]):.3f}")
    end = min(curve[-1][0] for curve in curves.values())
    for share in (0.25, 0.5, 1.0):
        print(
            f"after {share * end:5.1f} s: "
            + "  ".join(f"{name} {at(curve, share * end):.3f}" for name, curve in curves.items())
        )


if __name__ == "__main__":
    main()
