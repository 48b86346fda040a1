"""The preset in words, below the list that it was chosen from."""

from ..shared.html import Drawn


class PresetNote(Drawn):
    """Summary, source and quirk; what was changed since, and a way back. Hides the controls that nothing reads."""

    VIEW = "preset"
    SENDS = ("back",)
    LABELS = ("preset_changed", "preset_source")
