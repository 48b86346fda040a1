"""Under which convention a batch was made, and how much of that anybody said: what is not said is not held against it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ..batch import Batch
from ..convention import AdvantageConfig, Convention, part, tuples
from ..presets import PRESETS, preset
from ..rules import RULES
from ..types import StepTrace

KINDS = {f.name: type(f.default) for f in fields(Convention)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A convention and the names of its settings that trace, file or preset stated."""

    convention: Convention
    said: frozenset[str]

    def get(self, name: str) -> Any:
        """The setting, or None where nobody said it."""
        return getattr(self.convention, name) if name in self.said else None

    def advantage_config(self) -> AdvantageConfig:
        return part(AdvantageConfig, self.convention)


def settings_of(batch: Batch, trace: StepTrace | None, named: str | None) -> Settings:
    """The trace's recipe; else the preset that was named, or that the file names, with the file's own settings on top.

    Raises ValueError for a named preset that does not exist.
    """
    if trace is not None:
        return Settings(convention=trace.recipe.convention(), said=frozenset(KINDS))
    values: dict[str, Any] = {}
    in_file = batch.meta.get("preset")
    if named:
        values |= preset(named).values()
    elif in_file in PRESETS:
        values |= PRESETS[in_file].values()
    values |= {name: tuples(batch.meta[name]) for name, kind in KINDS.items() if _fits(batch.meta.get(name), kind)}
    if batch.meta.get("kl_in") == "reward" and values.get("reward_kl", "none") == "none":
        values["beta"] = 0.0  # meta.beta is then the coefficient in the reward
    if batch.meta.get("dual_clip") and "surrogate" not in values:
        values["surrogate"] = "dual-clip"
    refused = {name for name, _, ok in RULES if name in values and not _passes(ok, values[name])}
    values = {name: value for name, value in values.items() if name not in refused}  # as if it had not been said
    said = frozenset(values) & set(KINDS)
    return Settings(convention=Convention(**{name: values[name] for name in said}), said=said)


def _fits(value: Any, kind: type) -> bool:
    """Whether a file's value can stand for the setting."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, (list, tuple) if kind is tuple else kind) and (kind is not int or not isinstance(value, bool))


def _passes(ok: Callable[[Any], bool], value: Any) -> bool:
    try:
        return ok(value)
    except (TypeError, ValueError):
        return False
