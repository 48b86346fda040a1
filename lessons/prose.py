"""What people read: one Markdown file per lesson and language, English where a section is missing.

A lesson's file is split by `## section`. `[[name]]` in a section is the number of that quantity at the selected token.
`checks.md` and `ui.md` hold one `key: text` per line.
"""

import html
import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

TEXT = Path(__file__).parent / "text"
LANGUAGES = tuple(sorted(path.name for path in TEXT.iterdir() if path.is_dir()))
DEFAULT = "en"
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")


@cache
def sections(lang: str, name: str) -> dict[str, str]:
    """The sections of a lesson's file, in `lang` where it has them."""
    merged = {}
    for language in dict.fromkeys((DEFAULT, lang)):
        path = TEXT / language / f"{name}.md"
        if path.exists():
            parts = re.split(r"^## +(.+)$", path.read_text("utf-8"), flags=re.M)
            merged |= {key.strip(): body.strip() for key, body in zip(parts[1::2], parts[2::2], strict=True)}
    return merged


@cache
def lines(lang: str, name: str) -> dict[str, str]:
    """The `key: text` lines of a file."""
    merged = {}
    for language in dict.fromkeys((DEFAULT, lang)):
        path = TEXT / language / f"{name}.md"
        if path.exists():
            pairs = (line.split(": ", 1) for line in path.read_text("utf-8").splitlines() if ": " in line)
            merged |= {key.strip(): text.strip() for key, text in pairs}
    return merged


def label(lang: str, key: str, **values: object) -> str:
    """A short text of the user interface; `{name}` in it is filled in."""
    return lines(lang, "ui")[key].format(**values)


def labels(lang: str) -> dict[str, str]:
    return lines(lang, "ui")


def render(text: str, number_html=None) -> str:
    """Our own Markdown as HTML. `number_html(name)` gives the markup of a `[[name]]`."""
    made = _markdown.render(text)
    if number_html is None:
        return made
    return re.sub(r"\[\[([\w.]+)\]\]", lambda match: number_html(match[1]), made)


def options(section: str) -> tuple[str, list[dict[str, str]]]:
    """A question's text and its answers: the lines `- id: answer` at its end."""
    found = re.findall(r"^- ([\w-]+): (.+)$", section, flags=re.M)
    text = re.sub(r"^- [\w-]+: .+$", "", section, flags=re.M).strip()
    return text, [{"id": key, "label": answer} for key, answer in found]


def escape(text: str) -> str:
    return html.escape(text, quote=True)
