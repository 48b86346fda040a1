"""The journey of the selected token through the step: one number per stage, always in sight."""

from ..shared.html import Drawn


class Journey(Drawn):
    """The bar at the bottom: each step links to the lesson that explains it."""

    VIEW = "journey"
    SENDS = ("go",)
    LABELS = ("journey", "column_row", "position", "total", "no_token")
