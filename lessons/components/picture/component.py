"""The picture of the lesson: a heading and its panels."""

from ..shared.html import Drawn


class Picture(Drawn):
    """The lesson's heading, notices and panels; it also keeps the address bar."""

    VIEW = "picture"
    SENDS = ("select", "edit", "clear", "go")
    LABELS = (
        "brand", "stale", "running", "running_first", "no_token", "reset_cell", "masked", "beyond_end", "sampled",
        "wrong", "right", "rank", "index", "token", "position", "chart_loading", "which_update", "update_info",
        "preset", "preset_changed",
    )  # fmt: skip
