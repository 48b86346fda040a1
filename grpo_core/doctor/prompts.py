"""Checks on the way between engine and trainer: the same prompt, the same sampled ids, positions that count real tokens."""

import torch
from torch import Tensor

from ..batch import Batch
from .finding import Evidence, Finding
from .reading import behind_prompt, column_attention, column_ids, first_true, last_true, off_by, prompts_of, rows_at

SHOWN = 4  # rows quoted


def _real(ids: Tensor, pad: int | None) -> list[int]:
    """A row of ids without the padding at either end."""
    values = ids.tolist()
    while values and values[0] == pad:
        values.pop(0)
    while values and values[-1] == pad:
        values.pop()
    return values


def _engine_prompts(batch: Batch) -> list[tuple[int, ...]]:
    assert batch.sampler_prompt_ids is not None
    return [tuple(_real(row, batch.meta.get("pad_token_id"))) for row in batch.sampler_prompt_ids]


def _trimmed(prompts: list[tuple[int, ...]], pad: int | None) -> list[tuple[int, ...]]:
    return [tuple(_real(torch.tensor(prompt), pad)) for prompt in prompts]


def _apart(evidence: Evidence) -> list[int]:
    """Rows whose prompt is another for the engine than for the trainer."""
    batch = evidence.batch
    if batch.sampler_prompt_ids is None:
        return []
    mine = _trimmed(prompts_of(batch), batch.meta.get("pad_token_id"))
    return [row for row, (one, other) in enumerate(zip(mine, _engine_prompts(batch), strict=True)) if one != other]


def double_bos(evidence: Evidence) -> list[Finding]:
    """No prompt starts with the start token twice (a chat template that writes it, and a tokenizer that adds it)."""
    batch = evidence.batch
    said = batch.meta.get("bos_token_id")
    bos = said if said is not None or evidence.policy is None else evidence.policy.bos_id
    pad = batch.meta.get("pad_token_id")
    if bos is None or bos == pad:
        return []
    ids = batch.row_ids()
    first = first_true(batch.row_mask())
    twice = [r for r, p in enumerate(prompts_of(batch)) if p[:2] == (bos, bos)]
    other = (
        [r for r, p in enumerate(_engine_prompts(batch)) if p[:2] == (bos, bos)] if batch.sampler_prompt_ids is not None else []
    )
    rows = tuple(sorted({*twice, *other}))
    if not rows:
        return []
    proven = bool(set(rows) & set(_apart(evidence)))
    who = "" if not proven else " on one side only: engine and trainer read different prompts"
    prompts = prompts_of(batch)
    return [
        Finding(
            check="double_bos", severity="error" if proven else "warning", quantity="prompt_ids", rows=rows,
            tokens=tuple((row, int(first[row]) + 1) for row in twice),
            message=f"{len(rows)} of {len(ids)} prompts start with the start token (id {bos}) twice{who}.",
            fix="Tokenise the chat template's text with add_special_tokens=False.",
            expected={f"prompt_ids[{row}]": list(prompts[row][1:] if row in twice else prompts[row]) for row in rows[:SHOWN]},
            found={f"prompt_ids[{row}]": list(prompts[row]) for row in rows[:SHOWN]},
        )
    ]  # fmt: skip


def prompt_truncated(evidence: Evidence) -> list[Finding]:
    """The trainer scores the prompt that the engine saw, from its start token on."""
    batch, limit, bos = evidence.batch, evidence.batch.meta.get("max_prompt_length"), evidence.batch.meta.get("bos_token_id")
    prompts = _trimmed(prompts_of(batch), batch.meta.get("pad_token_id"))
    apart = [row for row in _apart(evidence) if _engine_prompts(batch)[row][-len(prompts[row]) :] == prompts[row]]
    cut = [row for row in apart if len(prompts[row]) < len(_engine_prompts(batch)[row])]
    severity = "error"
    if not cut and isinstance(limit, int) and bos is not None:
        started = any(prompt[:1] == (bos,) for prompt in prompts)
        cut = [row for row, prompt in enumerate(prompts) if len(prompt) >= limit and prompt[0] != bos] if started else []
        severity = "warning"
    cut = [row for row in cut if not (bos is not None and _engine_starts_twice(batch, row, bos))]
    if not cut:
        return []
    whole = _engine_prompts(batch) if batch.sampler_prompt_ids is not None else prompts
    said = "the engine saw longer ones" if severity == "error" else f"they fill max_prompt_length {limit}"
    return [
        Finding(
            check="prompt_truncated", severity=severity, quantity="prompt_ids", rows=tuple(cut),
            message=f"The prompts of {len(cut)} rows were cut at the front: {said}, and the ratios are of other contexts.",
            fix="Filter prompts that are too long before sampling; never cut what the engine has seen.",
            expected={f"prompt_ids[{row}]": list(whole[row]) for row in cut[:SHOWN]} if severity == "error" else {},
            found={f"prompt_ids[{row}]": list(prompts[row]) for row in cut[:SHOWN]} | _ratios(evidence, cut),
        )
    ]  # fmt: skip


def _engine_starts_twice(batch: Batch, row: int, bos: int) -> bool:
    return batch.sampler_prompt_ids is not None and _engine_prompts(batch)[row][:2] == (bos, bos)


def _ratios(evidence: Evidence, rows: list[int]) -> dict[str, object]:
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    if batch.old_logprobs is None or batch.sampler_logprobs is None:
        return {}
    gap = off_by(batch.old_logprobs, batch.sampler_logprobs, mask)
    return {"max_abs_log_ratio": float(gap[rows].abs().max()), f"ratio[{rows[0]}]": gap[rows[0]][mask[rows[0]]].exp().tolist()}


def prompt_ids_match_engine(evidence: Evidence) -> list[Finding]:
    """Engine and trainer read the same prompt ids, however they differ."""
    batch = evidence.batch
    named = {
        row for check in (double_bos, prompt_truncated) for f in check(evidence) if f.severity == "error" for row in f.rows
    }
    rows = tuple(row for row in _apart(evidence) if row not in named)
    if not rows:
        return []
    mine, engine = _trimmed(prompts_of(batch), batch.meta.get("pad_token_id")), _engine_prompts(batch)
    return [
        Finding(
            check="prompt_ids_match_engine", severity="error", quantity="prompt_ids", rows=rows,
            message=f"The prompts of {len(rows)} rows have other ids in the trainer than in the engine "
            f"(row {rows[0]}: {len(mine[rows[0]])} ids against {len(engine[rows[0]])}).",
            fix="Tokenise the prompt once and hand the ids to both.",
            expected={f"prompt_ids[{row}]": list(engine[row]) for row in rows[:SHOWN]},
            found={f"prompt_ids[{row}]": list(mine[row]) for row in rows[:SHOWN]},
        )
    ]  # fmt: skip


def retokenisation_drift(evidence: Evidence) -> list[Finding]:
    """The ids that are trained are the ids that were sampled."""
    batch, pad = evidence.batch, evidence.batch.meta.get("pad_token_id")
    if batch.sampled_ids is None:
        return would_drift(evidence)
    ids, positions = column_ids(batch), batch.token_positions()
    region = behind_prompt(batch)
    real = region & (column_attention(batch) if batch.attention_mask is not None else batch.completion_columns())
    begins, ends = first_true(region), last_true(real)
    tokens, pairs = [], {}
    for row in range(len(ids)):
        trained = ids[row, int(begins[row]) : int(ends[row]) + 1].tolist()
        sampled = batch.sampled_ids[row].tolist()
        if sampled[: len(trained)] == trained and all(x in (pad, -1, -100) or x == pad for x in sampled[len(trained) :]):
            continue
        sampled = [x for x in _real(batch.sampled_ids[row], pad) if x >= 0]
        rest = ids[row, int(begins[row]) : int(begins[row]) + len(sampled)].tolist()
        if rest == sampled and len(sampled) >= len(trained):
            continue  # the same ids behind a mask that ends early: no other tokenisation
        first = next(
            (n for n, (a, b) in enumerate(zip(trained, sampled, strict=False)) if a != b), min(len(trained), len(sampled))
        )
        column = min(int(begins[row]) + first, ids.shape[1] - 1)
        tokens.append((row, int(positions[column])))
        pairs[row] = (trained, sampled)
    if not tokens:
        return []
    shown = list(pairs)[:SHOWN]
    row = shown[0]
    return [
        Finding(
            check="retokenisation_drift", severity="error", rows=tuple(pairs), tokens=tuple(tokens),
            quantity="input_ids" if batch.layout == "sequence" else "completion_ids",
            message=f"{len(pairs)} rows are trained on other ids than were sampled; row {row}: {_text(batch, pairs[row][1])} "
            f"became {_text(batch, pairs[row][0])}.",
            fix="Train on the ids that the engine returned; never decode and encode again.",
            expected={f"completion_ids[{r}]": pairs[r][1] for r in shown} | {f"length[{r}]": len(pairs[r][1]) for r in shown},
            found={f"completion_ids[{r}]": pairs[r][0] for r in shown} | {f"length[{r}]": len(pairs[r][0]) for r in shown},
        )
    ]  # fmt: skip


def would_drift(evidence: Evidence) -> list[Finding]:
    """With the tokenizer at hand: rows whose text, encoded again, is other ids. Right as long as nobody does that."""
    batch, policy = evidence.batch, evidence.policy
    assert policy is not None
    ids, answer = column_ids(batch), batch.completion_columns() & column_attention(batch)
    tokens, pairs = [], {}
    for row in range(len(ids)):
        columns = [n for n in answer[row].nonzero().flatten().tolist() if int(ids[row, n]) not in evidence.eos_ids]
        own = ids[row, columns].tolist()
        again = policy.encode_again(own)
        if own and again is not None and again != own:
            first = next((n for n, (a, b) in enumerate(zip(own, again, strict=False)) if a != b), min(len(own), len(again)))
            tokens.append((row, int(batch.token_positions()[columns[min(first, len(columns) - 1)]])))
            pairs[row] = (own, again)
    if not tokens:
        return []
    return [
        Finding(
            check="retokenisation_drift", severity="info", rows=tuple(pairs), tokens=tuple(tokens),
            quantity="input_ids" if batch.layout == "sequence" else "completion_ids",
            message=f"{len(pairs)} rows hold ids that their text, encoded again, would not give: right, they were sampled.",
            fix="Nothing is broken; train on these ids, and never on ids encoded from the text.",
            expected={f"completion_ids[{row}]": pairs[row][0] for row in list(pairs)[:SHOWN]},
            found={f"encoded_again[{row}]": pairs[row][1] for row in list(pairs)[:SHOWN]},
        )
    ]  # fmt: skip


def _text(batch: Batch, ids: list[int]) -> str:
    names = batch.meta.get("tokens") or {}
    return str([names.get(str(one), one) for one in ids[:6]])


def position_ids_count(evidence: Evidence) -> list[Finding]:
    """Positions count the real tokens of a row from 0, and of a packed row from each sequence's start."""
    batch = evidence.batch
    assert batch.position_ids is not None
    real, given = batch.row_mask(), batch.position_ids
    right = (real.long().cumsum(1) - 1).clamp(min=0)
    step = given[:, 1:] - given[:, :-1]
    both = real[:, 1:] & real[:, :-1]
    jumps = both & (step != 1) & (given[:, 1:] != 0)  # back to 0: the next packed sequence
    begins = first_true(real).clamp(max=real.shape[1] - 1)
    late = real.any(1) & (given.gather(1, begins.unsqueeze(1)).squeeze(1) != 0)
    if jumps.any():
        severity, rows, said = "error", rows_at(jumps), "do not go up by 1 from token to token"
    elif late.any():
        rows = rows_at(late)
        severity = "error" if _only_these_are_off(evidence, late) else "warning"
        said = f"start at {int(given[rows[0], int(begins[rows[0]])])}, not at 0: they count the padding"
    else:
        return []
    shown = list(rows)[:SHOWN]
    return [
        Finding(
            check="position_ids_count", severity=severity, quantity="position_ids", rows=rows,
            message=f"The position ids of {len(rows)} rows {said}.",
            fix="Pass position_ids = cumulative attention mask - 1; rotary models forgive an offset, absolute ones do not.",
            expected={f"position_ids[{row}]": right[row].tolist() for row in shown},
            found={f"position_ids[{row}]": given[row].tolist() for row in shown},
        )
    ]  # fmt: skip


def _only_these_are_off(evidence: Evidence, late: Tensor) -> bool:
    """Whether sampler and trainer disagree on exactly these rows."""
    batch, mask = evidence.batch, evidence.batch.trained_mask()
    old = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    if old is None or batch.sampler_logprobs is None:
        return False
    off = off_by(old, batch.sampler_logprobs, mask).abs().amax(1) > 0.05
    return bool((off == late)[mask.any(1)].all())
