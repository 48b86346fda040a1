"""My trainer printed this loss: which preset and which aggregation give it on this batch."""

from typing import Any

from grpo_core.fingerprint import Match, matches
from grpo_core.presets import PRESETS

from .. import prose
from ..components import printed_loss
from ..numbers import signed
from .link import Wanted, printed_number
from .source import Source, candidates_of

MOST = 12  # exact matches that are listed; of the nearest, a quarter


def printed_of(source: Source, wanted: Wanted) -> str:
    """What was typed, else what the file says."""
    return source.printed if wanted.printed is None else wanted.printed


def panel(source: Source, wanted: Wanted, ready: bool) -> dict[str, Any]:
    """The field, and what was found."""
    lang, text = wanted.selection.lang, printed_of(source, wanted)
    said = {"value": text, "from_file": wanted.printed is None and bool(source.printed)}
    if not text or not ready:
        return printed_loss(**said, sentence=prose.label(lang, "printed_wait") if text else "", matches=[])
    value, decimals = printed_number(text)
    found = matches(candidates_of(source), value, decimals)
    exact = [match for match in found if match.exact]
    if not exact:
        return printed_loss(
            **said,
            sentence=prose.label(lang, "printed_nearest", printed=text),
            matches=[_line(m, lang) for m in found[: MOST // 4]],
        )
    more = prose.label(lang, "printed_more", count=len(exact) - MOST) if len(exact) > MOST else ""
    key = "printed_exact_one" if len(exact) == 1 else "printed_exact"
    sentence = prose.label(lang, key, printed=text, count=len(exact))
    return printed_loss(**said, sentence=sentence, matches=[_line(m, lang) for m in exact[:MOST]], more=more)


def _line(match: Match, lang: str) -> dict[str, Any]:
    row = PRESETS[match.preset]
    how = [] if match.own_aggregation else [prose.label(lang, "printed_aggregation", aggregation=match.aggregation)]
    how += [] if match.part == "loss" else [prose.label(lang, "printed_part")]
    return {
        "preset": match.preset, "trainer": row.trainer, "version": row.version, "how": ", ".join(how) or row.summary,
        "v": signed(match.value), "gap": signed(match.gap), "exact": match.exact,
    }  # fmt: skip
