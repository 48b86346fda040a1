"""The page Train: a run's controls and settings, its curves, its kept steps, what it answers before and now."""

from ..shared.html import Drawn


class Train(Drawn):
    """All of the page beside navigation and side; it also keeps the address bar."""

    VIEW = "train"
    SENDS = ("set", "start", "pause", "resume", "stop", "poll")
    LABELS = (
        "brand", "chart_loading", "no_token", "masked", "preset", "preset_changed", "train_form", "train_form_locked",
        "train_start", "train_again", "train_pause", "train_resume", "train_stop", "train_numbers", "train_open_pick",
        "train_open_link", "train_step", "train_speed",
    )  # fmt: skip
