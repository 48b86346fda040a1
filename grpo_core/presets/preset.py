"""What a preset is: a convention with a name, where it comes from, and what surprises people about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from ..convention import Convention

FREE = ("max_completion_length",)  # belongs to the run, not to the trainer


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One trainer or paper, version and variant."""

    name: str  # trainer/variant
    trainer: str
    version: str
    summary: str
    source: str  # the paper, or the file and version that the settings were read from
    quirk: str  # what surprises people; empty where nothing does
    settings: Mapping[str, Any] = field(hash=False)  # where it differs from the paper's GRPO, `Convention()`

    def convention(self) -> Convention:
        return Convention(**self.settings)

    def values(self) -> dict[str, Any]:
        """Every setting that the preset fixes, by field of `Convention`."""
        convention = self.convention()
        return {f.name: getattr(convention, f.name) for f in fields(convention) if f.name not in FREE}


class Row(NamedTuple):
    """A line of a trainer's table: what differs from the trainer's defaults."""

    variant: str  # "" = the defaults
    summary: str
    settings: Mapping[str, Any] = {}
    quirk: str = ""
    source: str = ""  # where it is not the trainer's


def presets_of(
    key: str, trainer: str, version: str, source: str, base: Mapping[str, Any], rows: Sequence[Row]
) -> tuple[Preset, ...]:
    """A trainer's table as presets: `base` are its defaults."""
    return tuple(
        Preset(
            name=f"{key}/{row.variant}" if row.variant else key, trainer=trainer, version=version, summary=row.summary,
            source=row.source or source, quirk=row.quirk, settings={**base, **row.settings},
        )
        for row in rows
    )  # fmt: skip
