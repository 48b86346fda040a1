"""`python -m grpo_core train`: a training run, from its config to its last checkpoint."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..checkpoint import WRITE_ERRORS, Checkpoint, newest, prune, save
from ..convention import tuples
from ..engine import LOCAL, Engine
from ..memory import keep_freed_memory
from ..recorder import Recorder
from ..train_config import TrainConfig, from_toml, from_values
from ..trainer import StepRecord, Trainer

# What may change when a run goes on: nothing of it moves a weight by more than rounding. `steps` only where no schedule
# depends on it.
FREE = (
    "micro_batch_rows", "gradient_checkpointing", "threads",
    "out", "checkpoint_every", "keep_checkpoints", "eval_every", "eval_data", "eval_prompts", "sample_every", "capture_every",
    "trace_steps", "trackers", "reward_timeout", "vllm_url", "vllm_weights", "vllm_timeout",
)  # fmt: skip


def engine_of(config: TrainConfig) -> Engine:
    """Many processes, a GPU, mixed precision and trackers go through accelerate; else there is just this process."""
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not (many or torch.cuda.is_available() or config.autocast or config.trackers or config.sharding != "replicate"):
        return LOCAL
    try:
        from ..distributed import Processes
    except ImportError as error:
        raise ValueError(
            "train: several processes, a GPU, autocast and trackers need accelerate: pip install accelerate"
        ) from error
    if not config.sharding.startswith("zero"):
        return Processes(config)
    try:
        from ..zero import Zero
    except ImportError as error:
        raise ValueError(
            f"sharding: found {config.sharding!r}, which needs the package deepspeed (pip install deepspeed)"
        ) from error
    return Zero(config)


def start_of(config: TrainConfig, resume: bool, say) -> Checkpoint | None:
    """The checkpoint to go on from. Raises ValueError where the folder holds another run, or none to go on with."""
    out = Path(config.out)
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"out: found {config.out!r}, but {str(there)!r} is no folder that can be written to")
    found, passed = newest(out)
    if passed and not found:
        best = f"; model = {str(out / 'best' / 'model')!r} has the best weights" if (out / "best").exists() else ""
        raise ValueError(f"out: found no usable checkpoint in {config.out} ({passed[0]}), allowed: another folder{best}")
    for line in passed:
        say(f"{line}; the one before it is used")
    if found and not resume:
        raise ValueError(f"out: found a run in {config.out}; add --resume to go on with it, or name another folder")
    if found:
        refuse_changes(found.state["config"], config)
        if found.state["step"] >= config.steps:
            raise ValueError(f"steps: found {config.steps}, and the run in {config.out} has taken {found.state['step']}")
    elif resume:
        say(f"no checkpoint in {config.out} yet: the run starts from the beginning")
    return found


def refuse_changes(before: dict[str, Any], config: TrainConfig) -> None:
    """A run goes on with the settings it began with."""
    free = (*FREE, "steps") if config.schedule == "constant" else FREE
    for name, value in vars(config).items():
        old = tuples(before.get(name))
        if name not in free and old != value:
            raise ValueError(
                f"{name}: found {value!r}, and the run in {config.out} has {old!r}; allowed: the same, or another out"
            )


class Run:
    """A trainer with everything around it: what is printed, logged, kept."""

    def __init__(self, config: TrainConfig, resume: bool):
        self.config, self.out, self.engine = config, Path(config.out), engine_of(config)
        self.main = self.engine.process == 0
        checkpoint = start_of(config, resume, self.say)
        self.engine.wait()  # nobody writes before everybody has read
        keep_freed_memory()
        self.trainer = Trainer(config, self.engine, checkpoint)
        self.recorder = Recorder(self.out, self.trainer.step) if self.main else None
        self.saved = self.trainer.step if checkpoint else -1

    def say(self, line: str) -> None:
        if self.engine.process == 0:
            tqdm.write(line, file=sys.stderr)

    def __call__(self) -> None:
        config, trainer = self.config, self.trainer
        bar = tqdm(total=config.steps, initial=trainer.step, unit="step", smoothing=0.1, disable=not self.main, file=sys.stderr)
        with bar:
            if config.eval_every and trainer.step == 0:
                self.evaluate()
            for record in trainer.run():
                self.after(record)
                bar.set_postfix({name: f"{record.metrics[name]:.3g}" for name in ("reward", "kl") if name in record.metrics})
                bar.update()
        if self.saved != trainer.step:
            self.checkpoint(f"checkpoint-{trainer.step:08d}", last=True)
        self.say(f"done; the model is in {self.out / f'checkpoint-{trainer.step:08d}' / 'model'}")

    def after(self, record: StepRecord) -> None:
        """Log, evaluate, keep. `trainer.step` is already the next one."""
        config, step = self.config, self.trainer.step
        if record.step == 0 and self.trainer.scoring:
            self.say(f"scoring {self.trainer.scoring.reason}")
        for line in dict.fromkeys(self.engine.everyones(list(self.trainer.notes))):
            self.say(f"step {record.step}: {line}")
        self.trainer.notes.clear()
        self.engine.log(record.metrics, record.step)
        if self.recorder:
            self.keep(self.recorder.metrics, record.step, record.metrics)
            if config.sample_every and record.step % config.sample_every == 0:
                self.show(self.keep(self.recorder.samples, record) or [])
            if config.capture_every and record.step % config.capture_every == 0:
                self.keep(self.recorder.capture, record, self.trainer)
        if config.eval_every and step % config.eval_every == 0:
            self.evaluate()
        if config.checkpoint_every and step % config.checkpoint_every == 0:
            self.checkpoint(f"checkpoint-{step:08d}")

    def keep(self, write: Callable, *what: Any) -> Any:
        """A line or a file of the run; where it cannot be written the run goes on without it."""
        try:
            return write(*what)
        except WRITE_ERRORS as error:
            self.say(f"{self.out}: {str(error)[:200]}")

    def show(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            shown = [f"{name} {'-' if value is None else format(value, 'g')}" for name, value in row["rewards"].items()]
            rewards = "  ".join(shown)
            self.say(f"step {row['step']}  {row['prompt'][:40]!r} -> {row['completion'][:60]!r}  {rewards}")

    def evaluate(self) -> None:
        """Rewards of the weights as they are; the best so far are kept."""
        numbers, step = self.trainer.evaluate(), self.trainer.step
        self.say(f"step {step}: " + "  ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
        self.engine.log(numbers, step)
        if self.recorder:
            self.keep(self.recorder.evaluation, step, numbers)
        if numbers["eval/reward"] > self.trainer.best:
            self.trainer.best = numbers["eval/reward"]
            self.checkpoint("best")

    def checkpoint(self, name: str, last: bool = False) -> None:
        """Writes one, and lets older ones go. Where it cannot be written the run goes on, unless it is the last."""
        weights = self.engine.weights(self.trainer.policy)
        optimizer = self.engine.optimizer_state(self.trainer.policy, self.trainer.optimizer)
        failure = ""
        if self.main:
            try:
                save(self.out / name, self.trainer.policy, weights, optimizer, self.trainer.state())
                if name != "best":
                    prune(self.out, self.config.keep_checkpoints, name)
            except WRITE_ERRORS as error:
                failure = f"checkpoint: {name} could not be written to {self.out} ({str(error)[:200]}); older ones are kept"
        failure = self.engine.agreed(failure)
        if failure and last:
            raise ValueError(failure)
        if failure:
            self.say(failure)
        elif name != "best":
            self.saved = self.trainer.step


def add(commands: Any) -> None:
    """The command's arguments."""
    train = commands.add_parser("train", help="a training run: the lessons' step, many times")
    train.add_argument("--config", metavar="FILE.toml", help="settings, one `name = value` per line")
    train.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting on top; may be repeated")
    train.add_argument("--resume", action="store_true", help="go on from the newest whole checkpoint in `out`")
    train.add_argument("--capture-every", metavar="N", help="capture_every: each Nth step's batch as a file for Debug")
    train.add_argument(
        "--trace-step",
        action="append",
        default=[],
        metavar="K",
        help="trace_steps: step K kept for the lessons; may be repeated",
    )
    train.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status. Raises ValueError for what cannot be done."""
    settings = arguments.set + ([f"capture_every={arguments.capture_every}"] if arguments.capture_every else [])
    settings += [f"trace_steps=[{','.join(arguments.trace_step)}]"] if arguments.trace_step else []
    config = from_toml(arguments.config, settings) if arguments.config else from_values({}, settings)
    started = None
    try:
        started = Run(config, arguments.resume)
        started()
    except KeyboardInterrupt:
        kept = newest(Path(config.out))[0]
        on = f"--resume goes on from step {kept.state['step']} in {config.out}" if kept else f"no checkpoint in {config.out}"
        print(f"stopped; {on}", file=sys.stderr)
        return 130
    finally:
        if started:
            started.engine.close()
    return 0
