"""What the doctor says of a batch as one HTML page that needs nothing else: no script, no font, no request.

What came from the file is escaped everywhere; the page's own policy lets nothing be loaded besides.
"""

import html
from collections.abc import Iterable, Mapping
from typing import Any

from .batch import Batch
from .batch_summary import Spread, Summary, summary
from .doctor import Diagnosis, Finding, positions

SIGNS = {"error": "✕ Error", "warning": "! Warning", "info": "i Looks odd, is right"}
TOKENS, ROWS, AROUND, STRIPS = 60, 200, 6, 3  # listed tokens and rows; tokens beside a named one; strips per finding
LONGEST = 2000  # characters of one value

STYLE = """
:root { color-scheme: light dark; --ink: #1a1c23; --muted: #5c5e68; --page: #f7f6f2; --card: #fff; --line: #d9d6cd;
  --error: #b3261e; --warning: #8a5300; --info: #5f3fd9; --ok: #14733f; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceef3; --muted: #a2a7b5; --page: #0e1015; --card: #171a21;
  --line: #464d5c; --error: #ff8d85; --warning: #f4bd5b; --info: #a596ff; --ok: #62d394; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 32px 20px 60px; background: var(--page); color: var(--ink);
  font: 16px/1.55 ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; overflow-wrap: anywhere; } h2 { font-size: 1.25rem; margin: 34px 0 12px; }
h3 { font-size: 1.0625rem; margin: 0; overflow-wrap: anywhere; }
code, .piece { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }
.note, dt { color: var(--muted); font-size: .875rem; } dl { display: grid; gap: 12px 24px; margin: 0;
  grid-template-columns: repeat(auto-fill, minmax(11.5rem, 1fr)); } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.finding { margin: 14px 0; padding: 14px 18px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  border-left: 4px solid var(--tone); break-inside: avoid; } .error { --tone: var(--error); }
.warning { --tone: var(--warning); }
.info { --tone: var(--info); } .severity { color: var(--tone); font-weight: 700; font-size: .875rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 10px 0; font-size: .875rem; }
th { white-space: nowrap; }
th, td { padding: 4px 14px 4px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; font-variant-numeric: tabular-nums; } td { max-width: 26rem; }
.strip { display: flex; flex-wrap: wrap; gap: 4px; margin: 8px 0; } .token { padding: 1px 6px; border: 1px solid var(--line);
  border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; }
.token.here { border: 2px solid var(--tone); font-weight: 700; }
.fix { font-weight: 600; } li { overflow-wrap: anywhere; }
@media print { body { background: #fff; color: #000; max-width: none; padding: 0; } }
"""
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer"><title>{title}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""


def report_html(batch: Batch, diagnosis: Diagnosis, name: str) -> str:
    """The whole report. `name` is what the batch is called, a file's name as a rule."""
    said, plain = summary(batch), diagnosis.as_json(batch)
    findings = [
        _finding(batch, place, finding, values)
        for place, (finding, values) in enumerate(zip(diagnosis.findings, plain["findings"], strict=True), start=1)
    ]
    parts = [
        f"<h1>{_text(name)}</h1>", f"<p>{_verdict(diagnosis)}</p>", _summary(said), "<h2>Findings, causes first</h2>",
        *(findings or ["<p>None.</p>"]), _checks("Passed", ((check, "") for check in diagnosis.passed)),
        _checks("Could not be looked at", ((o.check, f"needs {', '.join(o.needs)}") for o in diagnosis.skipped)),
        _pairs("What the file says of the run", said.settings), _pairs("What the trainer printed", said.reported),
        _list("What was filled in, and what could not be placed", said.remarks),
        '<p class="note">Written by grpo_core: python -m grpo_core doctor FILE --html REPORT.html</p>',
    ]  # fmt: skip
    return PAGE.format(title=_text(f"{name}: report"), style=STYLE, body="\n".join(filter(None, parts)))


def _text(value: Any, longest: int = LONGEST) -> str:
    """As text of the page, never as markup; controls and lone surrogates as they are written in a string."""
    text = str(value)
    text = text if len(text) <= longest else f"{text[:longest]}…"
    shown = "".join(c if c.isprintable() or c in "\n " else ascii(c)[1:-1] for c in text)
    return html.escape(shown, quote=True)


def _verdict(diagnosis: Diagnosis) -> str:
    counts = [(severity, sum(f.severity == severity for f in diagnosis.findings)) for severity in SIGNS]
    said = ", ".join(f"{count} × {SIGNS[severity][2:].lower()}" for severity, count in counts if count)
    checks = len({finding.check for finding in diagnosis.findings}) + len(diagnosis.passed)
    return f"{said or 'Nothing wrong found'}, from {checks} checks that this batch can answer."


def _summary(said: Summary) -> str:
    groups = "not said" if said.groups is None or said.group_sizes is None else (
        f"{said.groups} of {said.group_sizes[0]} to {said.group_sizes[1]} rows"
    )  # fmt: skip
    numbers = {
        "rows": said.rows, "groups": groups, "trained tokens": f"{said.trained}; a row: {_spread(said.trained_per_row)}",
        "answer, in tokens": _spread(said.completion), "prompt, in tokens": _spread(said.prompt), "layout": said.layout,
        "framework": said.framework or "not said", "read as": said.preset,
    }  # fmt: skip
    cells = "".join(f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>" for key, value in numbers.items())
    held = f"<p>It holds {_names(said.present)}; it lacks {_names(said.absent) or 'nothing'}.</p>"
    return f"<h2>The batch</h2><dl>{cells}</dl>{held}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"<code>{_text(name)}</code>" for name in names)


def _spread(said: Spread) -> str:
    return f"{said.least} to {said.most}, median {said.median}"


def _finding(batch: Batch, place: int, finding: Finding, plain: Mapping[str, Any]) -> str:
    named = dict.fromkeys((*plain["expected"], *plain["found"]))
    lines = "".join(
        f"<tr><th><code>{_text(key)}</code></th><td>{_value(plain['found'].get(key))}</td>"
        f"<td>{_value(plain['expected'].get(key))}</td></tr>"
        for key in named
    )
    table = f'<div class="scroll"><table><tr><th>number</th><th>found</th><th>expected</th></tr>{lines}</table></div>'
    rows = f"<p>Rows {_some(finding.rows, ROWS)}</p>" if finding.rows else ""
    places = positions(finding, batch)
    tokens = f"<p>Tokens of <code>{_text(finding.quantity)}</code>, as [row, position]: {_some(places, TOKENS)}</p>"
    strips = "".join(_strip(batch, row, pos) for row, pos in finding.tokens[:STRIPS])
    fix = f'<p class="fix">What to do: {_text(finding.fix)}</p>' if finding.fix else ""
    return (
        f'<section class="finding {_text(finding.severity)}"><span class="severity">{SIGNS[finding.severity]}</span> '
        f"<code>{_text(finding.check)}</code><h3>{place}. {_text(finding.message)}</h3>{table if lines else ''}{rows}"
        f"{tokens if places else ''}{strips}{fix}</section>"
    )


def _value(value: Any) -> str:
    return "–" if value is None else _text(_plain(value))


def _plain(value: Any) -> str:
    """Seven digits of every number: more than fp32 holds is noise."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _some(items: Iterable[Any], most: int) -> str:
    items = [list(item) if isinstance(item, tuple) else item for item in items]
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return _text(", ".join(map(str, items[:most])) + more)


def _strip(batch: Batch, row: int, pos: int) -> str:
    """A named token among its neighbours, as text where the file says it."""
    ids, texts = batch.row_ids()[row].tolist(), batch.meta.get("tokens")
    texts = texts if isinstance(texts, Mapping) else {}
    first, last = max(0, pos - AROUND), min(len(ids), pos + AROUND + 1)
    tokens = "".join(
        f'<span class="token piece{" here" if at == pos else ""}">{_text(texts.get(str(ids[at]), ids[at]), 200)}</span>'
        for at in range(first, last)
    )
    return f'<div class="strip"><span class="note">row {row}</span>{tokens}</div>'


def _checks(title: str, checks: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f'<li><code>{_text(name)}</code> <span class="note">{_text(note)}</span></li>' for name, note in checks)
    return f"<h2>{title}</h2><ul>{lines}</ul>" if lines else ""


def _pairs(title: str, values: Mapping[str, Any]) -> str:
    lines = "".join(f"<tr><th><code>{_text(key)}</code></th><td>{_text(value)}</td></tr>" for key, value in values.items())
    return f'<h2>{title}</h2><div class="scroll"><table>{lines}</table></div>' if lines else ""


def _list(title: str, lines: Iterable[str]) -> str:
    listed = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{listed}</ul>" if listed else ""
