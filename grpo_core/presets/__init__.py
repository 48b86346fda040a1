"""Every trainer's and paper's settings as rows of one table: `PRESETS[name]`, `preset(name)`. One file per trainer."""

from difflib import get_close_matches

from . import liger, openrlhf, others, papers, roll, trl, verl
from .preset import Preset

__all__ = ["PRESETS", "Preset", "preset"]

_ALL = (*papers.PRESETS, *trl.PRESETS, *verl.PRESETS, *roll.PRESETS, *openrlhf.PRESETS, *liger.PRESETS, *others.PRESETS)
PRESETS = {row.name: row for row in _ALL}
assert len(PRESETS) == len(_ALL), "two presets have one name"


def preset(name: str) -> Preset:
    """The preset of that name. Raises ValueError with the nearest names where there is none."""
    if name in PRESETS:
        return PRESETS[name]
    nearest = get_close_matches(name.lower(), PRESETS, n=3, cutoff=0.4) or [n for n in PRESETS if "/" not in n]
    raise ValueError(f"preset: found {name!r}, allowed: one of {len(PRESETS)} names; nearest: {', '.join(nearest)}")
