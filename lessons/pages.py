"""The app's pages, as links that keep what is looked at."""

from typing import Any

from . import prose

PATHS = {"learn": "./", "compare": "compare"}  # beside each other, wherever the app is served


def links(lang: str, current: str, **queries: str) -> list[dict[str, Any]]:
    """For the navigation: where each page is, with its query."""
    return [
        {"title": prose.label(lang, f"page_{name}"), "href": path + queries[name], "current": name == current, "page": name}
        for name, path in PATHS.items()
    ]
