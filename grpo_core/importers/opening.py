"""`open_any`: a file of whatever tool as a batch, and what was recognised, filled in and missed on the way."""

from dataclasses import dataclass, replace
from pathlib import Path

from ..batch import Batch
from ..batch_file import remarks
from ..batch_file.fields import BadField
from ..batch_file.files import batch_of_content, shown
from ..policy import Policy
from . import own
from .formats import FORMATS, Format
from .lacking import lacking
from .source import Source, read_source
from .text import described, scored, tokenised

OWN = "batch file"


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """What a file turned out to be."""

    format: str  # a name of `FORMATS`, or "batch file"
    title: str
    encoding: str  # json, json lines, parquet, pt, safetensors
    rows: int
    filled: tuple[str, ...]  # a sentence per thing that the file does not say as such
    lacking: dict[str, tuple[str, ...]]  # question -> what the batch would have to hold


def open_any(
    path: str | Path, policy: Policy | None = None, step: int | None = None, temperature: float | None = None
) -> tuple[Batch, Recognised]:
    """Opens a batch file or another tool's dump; recognised by its content.

    `policy` tokenises texts, and scores the tokens where the dump has no log-probs of the policy, at `temperature` (default:
    what the dump says, else 1). `step`: which one of a log that holds several; default the last. Raises ValueError with one
    line: the file, what it was taken for, what was found and what is allowed.
    """
    path, name = Path(path), ""
    try:
        source = read_source(path)
        if own.holds(source):
            batch, name, title = _own(source, policy, temperature), OWN, "a batch file"
        else:
            found = _format(source)
            name, title = found.name, found.title
            batch = _read(found, source, policy, step, temperature)
    except BadField as error:
        taken = f", read as {title}" if name not in ("", OWN) else ""
        raise ValueError(f"{shown(path)}{taken}: {error}") from error
    return batch, Recognised(
        format=name, title=title, encoding=source.kind, rows=len(batch.row_ids()), filled=remarks(batch),
        lacking=lacking(batch, policy is not None),
    )  # fmt: skip


def _format(source: Source) -> Format:
    found = next((known for known in FORMATS if known.holds(source)), None)
    if found is not None:
        return found
    names = sorted(str(name) for name in source.names or (source.document if isinstance(source.document, dict) else ()))
    held = f"{source.kind} with {', '.join(ascii(name[:30])[1:-1] for name in names[:6]) or 'no names'}"
    known = "; ".join(f"{form.title} ({form.marks})" for form in FORMATS)
    raise BadField("content", held + (", …" if len(names) > 6 else ""), f"a batch file; {known}")


def _own(source: Source, policy: Policy | None, temperature: float | None) -> Batch:
    batch = batch_of_content(source.document, source.tensors)
    return _with_logprobs(batch, policy, temperature)


def _read(found: Format, source: Source, policy: Policy | None, step: int | None, temperature: float | None) -> Batch:
    draft = found.read(source, step)
    texts_only = draft.completions is not None
    tokenised(draft, policy)
    batch = batch_of_content(draft.fields | {"meta": draft.meta}, {})
    batch = replace(batch, derived=(*draft.filled, *batch.derived))
    if policy is None:
        return batch
    numbered = any(line.startswith("completion_ids: numbers for") for line in draft.filled)
    return batch if numbered else _with_logprobs(described(batch, policy, not texts_only), policy, temperature)


def _with_logprobs(batch: Batch, policy: Policy | None, temperature: float | None) -> Batch:
    """Scored where the dump knows no log-probs of the policy: stand-ins make room for the model's."""
    stand_in = any(line.startswith("policy_logprobs: old_logprobs") for line in batch.derived)
    if policy is None or not stand_in and (batch.policy_logprobs is not None or batch.logits is not None):
        return batch
    kept = tuple(line for line in batch.derived if not line.startswith("policy_logprobs: old_logprobs"))
    said = batch.meta.get("temperature")
    heat = temperature if temperature is not None else float(said) if said else 1.0
    return scored(replace(batch, policy_logprobs=None, derived=kept), policy, heat)
