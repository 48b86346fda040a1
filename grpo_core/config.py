"""Recipe: everything that one GRPO step depends on, as hashable primitives.

A recipe is cache key, link and test id at once: the same recipe on the same weights gives the same step, bit for bit.
`Recipe(...)` refuses what cannot be run, naming the field, the value and what is allowed; `Recipe.repaired` is the
forgiving way in for links: it falls back to the default field by field and says so.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar

from .convention import AdvantageConfig, Convention, LossConfig, part
from .rules import MAX_ROWS, RULES


@dataclass(frozen=True, kw_only=True)
class Recipe(Convention):
    """One GRPO step. Times are in tokens, log-probs in nats, learning rate in the optimizer's own unit."""

    # ---- what is sampled ------------------------------------------------------------------------------------------
    model: str = "tiny"  # "tiny" (built in), a folder, or a hub id
    prompts: tuple[str, ...] = ("What is 4 + 5?", "Compute 17 - 9 for me.")  # each gets `group_size` completions
    group_size: int = 4  # G
    temperature: float = 1.0  # sampling and scoring alike
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    seed: int = 18

    # ---- what it is worth; from there to the loss: the fields of Convention ------------------------------------------
    reward_functions: tuple[str, ...] = ("correct", "format")
    reward_weights: tuple[float, ...] = (1.0, 0.2)
    edited_rewards: tuple[tuple[int, int, float | None], ...] = ()  # (row, function, value): typed over the function's
    preset: str = "paper/grpo"  # whose convention the settings started from; the settings decide

    # ---- the update -----------------------------------------------------------------------------------------------
    updates: int = 2  # optimizer steps on this rollout
    learning_rate: float = 1e-4
    optimizer: str = "adamw"
    max_grad_norm: float = 1.0  # 0 = no gradient clipping
    layout: str = "prompt_completion"  # TRL's; "sequence" is ROLL's and verl's

    rules: ClassVar = RULES
    max_rows: ClassVar[int | None] = MAX_ROWS  # prompts x completions that one recipe may ask for

    def __post_init__(self) -> None:
        for name, allowed, ok in self.rules:
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
        if self.max_rows is not None and len(self.prompts) * self.group_size > self.max_rows:
            raise ValueError(
                f"group_size: found {len(self.prompts)} prompts x {self.group_size}, allowed: at most {self.max_rows} rows"
            )

    def loss_config(self) -> LossConfig:
        """The part of the recipe that `policy_loss` reads."""
        return part(LossConfig, self)

    def advantage_config(self) -> AdvantageConfig:
        """The part of the recipe that `group_advantages` and `token_advantages` read."""
        return part(AdvantageConfig, self)

    def convention(self) -> Convention:
        """Everything between rewards and loss: what a preset fixes."""
        return part(Convention, self)

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


assert {name for name, _, _ in RULES} == {f.name for f in fields(Recipe)}
assert all(f.default is not MISSING for f in fields(Recipe))
DEFAULT = Recipe()
