"""Recipe: everything that one GRPO step depends on, as hashable primitives.

A recipe is cache key, link and test id at once: the same recipe on the same weights gives the same step, bit for bit.
`Recipe(...)` refuses what cannot be run, naming the field, the value and what is allowed; `Recipe.repaired` is the
forgiving way in for links: it falls back to the default field by field and says so.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from .advantages import ADVANTAGE_MEAN, ADVANTAGE_STD
from .kl import KL
from .loss import AGGREGATION, RATIO, SURROGATE, LossConfig
from .tasks import REWARDS
from .types import LAYOUTS

OPTIMIZERS = ("adamw", "sgd")
MAX_ROWS = 64  # prompts x completions that one recipe may ask for; the trainer is bounded by memory instead


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One GRPO step. Times are in tokens, log-probs in nats, learning rate in the optimizer's own unit."""

    # ---- what is sampled ------------------------------------------------------------------------------------------
    model: str = "tiny"  # "tiny" (built in), a folder, or a hub id
    prompts: tuple[str, ...] = ("What is 4 + 5?", "Compute 17 - 9 for me.")  # each gets `group_size` completions
    group_size: int = 4  # G
    max_completion_length: int = 16
    temperature: float = 1.0  # sampling and scoring alike
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    seed: int = 49

    # ---- what it is worth -----------------------------------------------------------------------------------------
    reward_functions: tuple[str, ...] = ("correct", "format")
    reward_weights: tuple[float, ...] = (1.0, 0.2)
    edited_rewards: tuple[tuple[int, int, float | None], ...] = ()  # (row, function, value): typed over the function's
    advantage_mean: str = "group"
    advantage_std: str = "unbiased"
    advantage_eps: float = 1e-4

    # ---- the loss -------------------------------------------------------------------------------------------------
    ratio: str = "token"
    surrogate: str = "min-clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0  # used by the surrogate "dual-clip"
    kl_estimator: str = "k3"
    beta: float = 0.04
    aggregation: str = "seq-mean-token-mean"
    entropy_coef: float = 0.0

    # ---- the update -----------------------------------------------------------------------------------------------
    updates: int = 2  # optimizer steps on this rollout
    learning_rate: float = 1e-4
    optimizer: str = "adamw"
    max_grad_norm: float = 1.0  # 0 = no gradient clipping
    layout: str = "prompt_completion"  # TRL's; "sequence" is ROLL's and verl's

    def __post_init__(self) -> None:
        for name, allowed, ok in _RULES:
            value = getattr(self, name)
            if not ok(value):
                raise ValueError(f"{name}: found {value!r}, allowed: {allowed}")
        if len(self.reward_weights) != len(self.reward_functions):
            raise ValueError(
                f"reward_weights: found {len(self.reward_weights)} weights for {len(self.reward_functions)} "
                f"reward_functions, allowed: one each"
            )
        for row, function, _ in self.edited_rewards:
            rows, functions = len(self.prompts) * self.group_size, len(self.reward_functions)
            if row >= rows or function >= functions:
                raise ValueError(
                    f"edited_rewards: found row {row}, function {function}, allowed: rows 0 to {rows - 1}, "
                    f"functions 0 to {functions - 1}"
                )
        if len(self.prompts) * self.group_size > MAX_ROWS:
            raise ValueError(
                f"group_size: found {len(self.prompts)} prompts x {self.group_size}, allowed: at most {MAX_ROWS} rows"
            )

    def loss_config(self) -> LossConfig:
        """The part of the recipe that `policy_loss` reads."""
        return LossConfig(**{f.name: getattr(self, f.name) for f in fields(LossConfig) if hasattr(self, f.name)})

    def rollout_key(self) -> "Recipe":
        """Two recipes with equal keys sample the same rollout: every other field is at its default."""
        kept = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        return replace(DEFAULT, **kept)

    @classmethod
    def repaired(cls, values: Mapping[str, Any]) -> tuple["Recipe", list[str]]:
        """A recipe from untrusted `values`: what is unknown or refused falls back to its default.

        Returns the recipe and one message per field that fell back.
        """
        recipe, messages = cls(), []
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                messages.append(f"{name}: unknown setting, left out")
        # Fields that are judged together are tried together, so that neither is refused for the other's default.
        groups = [("prompts", "group_size"), ("reward_functions", "reward_weights")]
        paired = {name for group in groups for name in group}
        groups += [(f.name,) for f in fields(cls) if f.name not in paired]
        for group in groups:
            asked = {name: values[name] for name in group if name in values}
            for attempt in (asked, *({name: asked[name]} for name in asked)):
                try:
                    recipe = replace(recipe, **attempt)
                    messages += [f"{name}: left at its default" for name in asked.keys() - attempt.keys()]
                    break
                except (ValueError, TypeError) as error:
                    message = str(error)
            else:
                messages.append(f"{message}; the default {getattr(recipe, group[0])!r} is used")
        return recipe, messages


SAMPLING_FIELDS = (
    "model", "prompts", "group_size", "max_completion_length", "temperature", "top_p", "top_k", "seed",
    "reward_functions", "reward_weights",
)  # fmt: skip


def _number(low: float | int, high: float | int, *, open_low: bool = False):
    def ok(value: Any) -> bool:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        return real and (low < value if open_low else low <= value) and value <= high  # False for NaN and the infinities

    return ok


def _whole(low: int, high: int):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _one_of(table):
    return lambda value: isinstance(value, str) and value in table


def _texts(value: Any) -> bool:
    texts = isinstance(value, tuple) and 1 <= len(value) <= 8
    return texts and all(isinstance(t, str) and t.strip() and len(t) <= 4000 for t in value)


def _edits(value: Any) -> bool:
    def ok(edit: Any) -> bool:
        if not (isinstance(edit, tuple) and len(edit) == 3):
            return False
        row, function, reward = edit
        placed = _whole(0, MAX_ROWS - 1)(row) and _whole(0, 15)(function)
        return placed and (reward is None or _number(-1e6, 1e6)(reward))

    return isinstance(value, tuple) and all(map(ok, value))


def _names(table):
    def ok(value: Any) -> bool:
        named = isinstance(value, tuple) and len(value) >= 1 and all(isinstance(name, str) for name in value)
        return named and len(set(value)) == len(value) and set(value) <= set(table)

    return ok


def _weights(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_number(-100, 100), value))


def _listed(table) -> str:
    return ", ".join(table)


_RULES = (
    ("model", "a name, folder or hub id", lambda v: isinstance(v, str) and 0 < len(v) <= 500),
    ("prompts", "1 to 8 texts, none empty, each of at most 4000 characters", _texts),
    ("group_size", "a whole number from 1 to 64", _whole(1, 64)),
    ("max_completion_length", "a whole number from 1 to 1024", _whole(1, 1024)),
    ("temperature", "above 0, at most 10 (at 0 there is one answer only: nothing to compare)",
     _number(0, 10, open_low=True)),
    ("top_p", "above 0, at most 1 (1 = off)", _number(0, 1, open_low=True)),
    ("top_k", "a whole number from 0 (off)", _whole(0, 10**6)),
    ("seed", "a whole number from 0 to 2**31 - 1", _whole(0, 2**31 - 1)),
    ("reward_functions", f"different names out of {_listed(REWARDS)}", _names(REWARDS)),
    ("reward_weights", "numbers from -100 to 100", _weights),
    ("edited_rewards", "(row, function, finite number or None) triples", _edits),
    ("advantage_mean", _listed(ADVANTAGE_MEAN), _one_of(ADVANTAGE_MEAN)),
    ("advantage_std", _listed(ADVANTAGE_STD), _one_of(ADVANTAGE_STD)),
    ("advantage_eps", "0 to 1", _number(0, 1)),
    ("ratio", _listed(RATIO), _one_of(RATIO)),
    ("surrogate", _listed(SURROGATE), _one_of(SURROGATE)),
    ("clip_low", "0 to 1 (0 = the ratio may not fall at all)", _number(0, 1)),
    ("clip_high", "0 to 100 (0 = the ratio may not rise at all)", _number(0, 100)),
    ("dual_clip", "above 1, at most 1000", _number(1, 1000, open_low=True)),
    ("kl_estimator", _listed(KL), _one_of(KL)),
    ("beta", "0 to 100", _number(0, 100)),
    ("aggregation", _listed(AGGREGATION), _one_of(AGGREGATION)),
    ("entropy_coef", "-10 to 10", _number(-10, 10)),
    ("updates", "a whole number from 1 to 8", _whole(1, 8)),
    ("learning_rate", "0 to 10", _number(0, 10)),
    ("optimizer", _listed(OPTIMIZERS), _one_of(OPTIMIZERS)),
    ("max_grad_norm", "0 (off) to 1000000", _number(0, 1e6)),
    ("layout", _listed(LAYOUTS), _one_of(LAYOUTS)),
)  # fmt: skip

assert {name for name, _, _ in _RULES} == {f.name for f in fields(Recipe)}
assert all(f.default is not MISSING for f in fields(Recipe))
DEFAULT = Recipe()
