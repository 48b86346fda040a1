"""Presets as a person chooses them: the list, what choosing one sets, and how far a recipe has moved from its own."""

from dataclasses import replace
from typing import Any

from grpo_core import Recipe
from grpo_core.presets import PRESETS, Preset, preset

from . import knobs, prose
from .batches import is_batch


def titles() -> list[tuple[str, str]]:
    """(what the list shows, name) of every preset, trainer by trainer."""
    return [(title(row), row.name) for row in PRESETS.values()]


def title(row: Preset) -> str:
    """Its name, and whose and which version it is."""
    return f"{row.name} · {row.trainer} {row.version}".strip()


def under(recipe: Recipe, name: str) -> Recipe:
    """The recipe with everything that the preset fixes. Raises ValueError where there is no such preset."""
    return replace(recipe, preset=name, **preset(name).values())


def changed(recipe: Recipe) -> list[str]:
    """The settings that are no longer the preset's."""
    fixed = PRESETS[recipe.preset].values() if recipe.preset in PRESETS else {}
    return [name for name, value in fixed.items() if getattr(recipe, name) != value]


def note(recipe: Recipe, lang: str) -> dict[str, Any]:
    """What stands below the list: the preset in words, what was changed since, and which controls nothing reads."""
    row = PRESETS.get(recipe.preset)
    words = (
        {}
        if row is None
        else {
            "title": title(row),
            "summary": row.summary[:1].upper() + row.summary[1:],
            "source": row.source,
            "quirk": row.quirk,
        }
    )
    moved = changed(recipe)
    back = prose.label(lang, "preset_back", name=recipe.preset)
    fixed = prose.label(lang, "batch_fixed") if is_batch(recipe.model) else None
    return words | {
        "name": recipe.preset, "changed": moved, "back": back, "unread": knobs.unread(recipe), "fixed": fixed,
        "unread_sections": knobs.unread_sections(recipe),
    }  # fmt: skip
