"""The list of lessons: real links, so that they can be opened in a new tab and read by assistive tools."""

from ..shared.html import Drawn


class Nav(Drawn):
    """The list of lessons and pages."""

    VIEW = "nav"
    SENDS = ("go",)
    LABELS = ("brand", "lessons", "sections", "pages", "languages", "previous", "next")
