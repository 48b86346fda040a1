"""TrainConfig: everything that a training run depends on: a recipe, whose settings every step shares, and what a run adds.

Read from a TOML file of `name = value` lines (its tables only group them) and from `name=value` texts. An unknown name is
refused with the nearest one, a value that cannot be run with the setting, what was found and what is allowed.
"""

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from .config import Recipe
from .convention import part, tuples
from .presets import preset
from .rules import MAX_PROMPTS, MAX_ROWS, RULES, number, one_of, whole, yes_or_no
from .samplers import SAMPLERS
from .tasks import REWARDS

SCHEDULES = {  # share of the way from the end of the warm-up to the last step -> factor of the learning rate
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
SCORING, DTYPES, REFERENCES = ("auto", "packed", "padded"), ("float32", "bfloat16", "float64"), ("start", "none")
SHARDING = ("replicate", "shard", "zero1", "zero2", "zero3")


def _texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) and text.strip() for text in value)


def _steps(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(whole(0, 10**9), value))


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 4000


TRAIN_RULES = (
    ("group_size", "a whole number from 1 to 4096", whole(1, 4096)),
    ("max_completion_length", "a whole number from 1 to 1048576", whole(1, 2**20)),
    ("prompts", "texts, none empty", _texts),
    ("reward_functions", "different texts: correct, format, reasoning-gym, module:function, FILE.py:function or model:FOLDER",
     lambda value: _texts(value) and bool(value) and len(set(value)) == len(value)),
    ("data", "sums, prompts, reasoning-gym:TASK, a JSONL file, a folder or a hub id", lambda v: _text(v) and v != ""),
    ("prompt_column", "the name of a column", lambda v: _text(v) and v != ""),
    ("steps", "a whole number from 1", whole(1, 10**9)),
    ("prompts_per_step", "a whole number from 1 to 65536", whole(1, 65536)),
    ("minibatches", "a whole number from 1", whole(1, 65536)),
    ("micro_batch_rows", "a whole number from 0 (all rows at once)", whole(0, 2**20)),
    ("scoring", ", ".join(SCORING), one_of(SCORING)),
    ("drop_zero_std", "true or false", yes_or_no),
    ("schedule", ", ".join(SCHEDULES), one_of(SCHEDULES)),
    ("warmup_steps", "a whole number from 0", whole(0, 10**9)),
    ("weight_decay", "0 to 10", number(0, 10)),
    ("reference", ", ".join(REFERENCES), one_of(REFERENCES)),
    ("dtype", ", ".join(DTYPES), one_of(DTYPES)),
    ("autocast", "true or false", yes_or_no),
    ("gradient_checkpointing", "true or false", yes_or_no),
    ("lora_rank", "a whole number from 0 (no adapters) to 4096", whole(0, 4096)),
    ("lora_alpha", "above 0, at most 100000", number(0, 1e5, open_low=True)),
    ("lora_targets", "names of linear layers, or all-linear", lambda v: _texts(v) and bool(v)),
    ("sharding", ", ".join(SHARDING), one_of(SHARDING)),
    ("sampler", ", ".join(SAMPLERS), one_of(SAMPLERS)),
    ("vllm_url", "http://HOST:PORT of a vLLM server", lambda v: _text(v) and (v == "" or v.startswith(("http://", "https://")))),
    ("vllm_weights", "a folder that the server sees too; empty = vllm in out", _text),
    ("vllm_timeout", "above 0 seconds", number(0, 1e6, open_low=True)),
    ("threads", "a whole number from 0 (torch's own choice) to 1024", whole(0, 1024)),
    ("reward_timeout", "above 0 seconds", number(0, 1e6, open_low=True)),
    ("out", "a folder", lambda v: _text(v) and v != ""),
    ("checkpoint_every", "a whole number from 0 (only at the end)", whole(0, 10**9)),
    ("keep_checkpoints", "a whole number from 1", whole(1, 10**6)),
    ("eval_every", "a whole number from 0 (never)", whole(0, 10**9)),
    ("eval_data", "like data; empty = the data itself", _text),
    ("eval_prompts", "a whole number from 1", whole(1, 10**6)),
    ("sample_every", "a whole number from 0 (never)", whole(0, 10**9)),
    ("capture_every", "a whole number from 0 (never)", whole(0, 10**9)),
    ("trace_steps", "whole numbers from 0", _steps),
    ("trackers", "names that accelerate knows: tensorboard, trackio, wandb, …", _texts),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Recipe):
    """One training run. `seed` is the run's; each step's own comes from it and the step's number."""

    reward_functions: tuple[str, ...] = ("correct", "format")  # also module:function, FILE.py:function, model:FOLDER
    # ---- data -----------------------------------------------------------------------------------------------------
    data: str = "sums"  # the built-in model's questions, or where rows with a prompt come from
    prompt_column: str = "prompt"
    prompts_per_step: int = 8  # over all processes
    # ---- the run --------------------------------------------------------------------------------------------------
    steps: int = 100
    updates: int = 1
    minibatches: int = 1  # optimizer steps of each of the `updates` passes over a rollout
    micro_batch_rows: int = 0  # rows scored at a time; 0 = all of a minibatch
    scoring: str = "auto"  # a group as one packed row, or padded rows
    drop_zero_std: bool = False  # groups whose rewards are all equal leave the batch and its denominators
    schedule: str = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    reference: str = "start"  # a frozen copy of the first weights (adapters: the same weights without them), or none
    beta: float = 0.0
    # ---- the machine ----------------------------------------------------------------------------------------------
    dtype: str = "float32"  # of the weights; float64 to tell a fault from rounding
    autocast: bool = False  # products in bfloat16, weights as they are
    gradient_checkpointing: bool = False  # activations of a layer are computed again in backward
    lora_rank: int = 0
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = ("all-linear",)
    sharding: str = "replicate"  # every process holds all weights, or a share of them (fully_shard); zero1 … zero3: DeepSpeed
    sampler: str = "own"  # or transformers' continuous batching, or a vLLM server
    vllm_url: str = ""
    vllm_weights: str = ""  # where the server reads new weights from: a folder of this run's own
    vllm_timeout: float = 1800.0  # seconds that the server may take for the rows of one prompt, or to read new weights
    threads: int = 0
    reward_timeout: float = 60.0  # seconds that the reward functions may take for the rows of one step
    # ---- what is kept ---------------------------------------------------------------------------------------------
    out: str = "runs/grpo"
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    eval_every: int = 0
    eval_data: str = ""
    eval_prompts: int = 64
    sample_every: int = 10
    capture_every: int = 0
    trace_steps: tuple[int, ...] = ()
    trackers: tuple[str, ...] = ()

    rules: ClassVar = tuple(r for r in RULES if r[0] not in {name for name, _, _ in TRAIN_RULES}) + TRAIN_RULES
    max_rows: ClassVar = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needs_reference = [name for name in ("beta", "reward_kl_coef") if getattr(self, name)]
        if self.reference == "none" and needs_reference and (self.beta or self.reward_kl != "none"):
            name = needs_reference[0]
            raise ValueError(f"reference: found 'none' with {name} {getattr(self, name)}, allowed: start, or {name} 0")
        rows = self.prompts_per_step * self.group_size
        if self.minibatches > rows:
            raise ValueError(f"minibatches: found {self.minibatches}, allowed: at most the {rows} rows of a step")
        if self.data == "prompts" and not self.prompts:
            raise ValueError("prompts: found none, needed where data is 'prompts'")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps: found {self.warmup_steps}, allowed: below the {self.steps} steps")
        if self.sampler != "own":
            self._check_sampler()
        if self.trace_steps:
            self._check_lesson()
        if late := [step for step in self.trace_steps if step >= self.steps]:
            raise ValueError(f"trace_steps: found {late[0]}, allowed: 0 to {self.steps - 1}")

    def _check_sampler(self) -> None:
        """Another engine draws from the whole vocabulary: behind top-k and top-p it says no log-probs over all of it."""
        for name, whole_vocabulary in (("top_k", 0), ("top_p", 1)):
            if (value := getattr(self, name)) != whole_vocabulary:
                raise ValueError(
                    f"{name}: found {value} with sampler {self.sampler!r}, allowed: {whole_vocabulary}, or sampler 'own'"
                )
        if self.sampler == "vllm" and not self.vllm_url:
            raise ValueError("vllm_url: found '', needed where sampler is 'vllm' (http://HOST:PORT)")
        if self.sampler == "continuous_batching":
            for name, plain in (("autocast", False), ("sharding", "replicate")):
                if (value := getattr(self, name)) != plain:
                    raise ValueError(f"sampler: found {self.sampler!r} with {name} {value}, allowed: own, vllm")

    def _check_lesson(self) -> None:
        """A lesson holds few rows, whole weights, one minibatch, and reward functions that it knows by name."""
        rows = self.prompts_per_step * self.group_size
        if rows > MAX_ROWS or self.prompts_per_step > MAX_PROMPTS:
            raise ValueError(
                f"trace_steps: found {self.prompts_per_step} prompts x {self.group_size}, allowed for a lesson: at most "
                f"{MAX_PROMPTS} prompts and {MAX_ROWS} rows"
            )
        for name, plain in (("lora_rank", 0), ("autocast", False), ("drop_zero_std", False), ("dtype", "float32")):
            if (value := getattr(self, name)) != plain:
                raise ValueError(f"trace_steps: found with {name} {value}, allowed for a lesson: {plain or 'without'}")
        if self.minibatches > 1 or self.micro_batch_rows:
            raise ValueError("trace_steps: found with minibatches or micro_batch_rows, allowed for a lesson: all rows at once")
        if unknown := [name for name in self.reward_functions if name not in REWARDS]:
            raise ValueError(
                f"trace_steps: found the reward function {unknown[0]!r}, allowed for a lesson: {', '.join(REWARDS)}"
            )

    def learning_rate_at(self, step: int) -> float:
        """The rate of step 0 … steps - 1: a straight rise over the warm-up, then the schedule."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        return self.learning_rate * SCHEDULES[self.schedule]((step - self.warmup_steps) / (self.steps - self.warmup_steps))

    def at_step(self, step: int, prompts: tuple[str, ...]) -> "TrainConfig":
        """The settings of one step: its prompts, its learning rate and its own seed."""
        seed = (self.seed * 1_000_003 + step * 7_919) % 2**31
        return replace(self, prompts=prompts, learning_rate=self.learning_rate_at(step), seed=seed)

    def recipe(self) -> Recipe:
        """The step as a lesson's recipe. Raises ValueError where the lessons could not hold it."""
        return part(Recipe, self)


def from_toml(path: str | Path, settings: Iterable[str] = ()) -> TrainConfig:
    """The file's settings, with `name=value` texts (values as in TOML, bare words as text) on top."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"config: found no file {str(path)!r}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"config: {str(path)!r} cannot be read as TOML ({error})") from error
    return from_values(_flat(document), settings)


def from_values(values: Mapping[str, Any], settings: Iterable[str] = ()) -> TrainConfig:
    """A config from names and values. A preset's settings come first, what is named beside it on top."""
    merged = dict(values)
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set: found {text!r}, allowed: name=value")
        merged[name.strip()] = _value(value.strip())
    known = {f.name for f in fields(TrainConfig)}
    for name in merged.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(f"{name}: unknown setting{f'; did you mean {near[0]!r}?' if near else ''}")
    if isinstance(named := merged.get("reward_functions"), list | tuple):
        merged.setdefault("reward_weights", [1.0] * len(named))
    start = preset(merged["preset"]).values() if merged.get("preset") else {}
    return TrainConfig(**(start | {name: tuples(value) for name, value in merged.items()}))


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        inner = value.items() if isinstance(value, Mapping) else [(name, value)]
        for key, setting in inner:
            if key in flat:
                raise ValueError(f"{key}: found twice in the file, allowed: once")
            flat[key] = setting
    return flat


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
