"""What the addresses of the pages beside the lessons share: their own parts, and the lessons' behind them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, urlencode

from grpo_core.presets import preset

from . import link

LONGEST = 100  # characters of a text in an address


def split(text: str, own: Collection[str]) -> tuple[dict[str, str], str]:
    """A page's own parts of an address by name, and the rest, which `link.parse` reads."""
    if len(text) > link.MAX_QUERY:
        return {}, text  # refused there, and said
    pairs = parse_qsl(text.removeprefix("?"), keep_blank_values=True)
    rest = urlencode([pair for pair in pairs if pair[0] not in own])
    return {key: value for key, value in pairs if key in own}, f"?{rest}"


def joined(base: str, pairs: Sequence[tuple[str, Any]]) -> str:
    """The lessons' address with a page's own parts behind it."""
    return f"{base}&{urlencode(pairs)}" if pairs else base


def read(given: Mapping[str, str], readers: Mapping[str, Callable[[str, str], Any]], messages: list[str]) -> dict[str, Any]:
    """What is given as text as values. What cannot be used is left out, and said in `messages`."""
    values = {}
    for name, text in given.items():
        try:
            values[name] = readers[name](name, text)
        except ValueError as error:
            messages.append(" ".join(str(error).split()))
    return values


def one_of(name: str, text: str, allowed: Sequence[str]) -> str:
    if text not in allowed:
        nearest = get_close_matches(text[:LONGEST], allowed, n=3, cutoff=0.3) or [one for one in allowed if one][:3]
        raise ValueError(f"{name}: found {text[:40]!r}; nearest: {', '.join(nearest)}")
    return text


def preset_name(name: str, text: str) -> str:
    """The full name of a preset."""
    try:
        return preset(text[:LONGEST]).name
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('preset: ')}") from None


def preset_or_none(name: str, text: str) -> str:
    """The same, where nothing stays nothing."""
    return preset_name(name, text) if text else ""
