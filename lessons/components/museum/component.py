"""The museum: a shelf of known bugs, and the one on the table."""

from ..shared.html import Drawn


class Museum(Drawn):
    """All of the page beside the navigation; it also keeps the address bar."""

    VIEW = "museum"
    SENDS = ("choose", "guess", "tell", "carry")
    LABELS = (
        "brand", "debug_found", "debug_expected", "debug_fix", "debug_quantity_name", "debug_tokens_named", "debug_rows_named",
        "museum_shelf", "museum_progress", "museum_forget", "museum_back", "museum_next", "museum_running", "museum_walk",
        "museum_walk_hint", "museum_question", "museum_guess_hint", "museum_none", "museum_none_info", "museum_say",
        "museum_tell", "museum_right", "museum_wrong", "museum_see", "museum_then", "museum_debug", "museum_report",
        "museum_done_found", "museum_done_told", "museum_why", "museum_exhibit", "museum_all_badges",
    )  # fmt: skip
