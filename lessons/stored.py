"""Lesson 4 on a batch file: the advantages that it stores, beside those that its rewards give in the chosen convention."""

from dataclasses import replace

from .absent import lacking, said
from .components import table, text
from .figures import row_label
from .formulas import advantage_formula
from .lesson import Context

APART = 1e-3  # of the larger of two advantages and 1: beyond what rounding and another epsilon explain


def recomputed(context: Context) -> str:
    """The quantity: the rewards' advantages in the recipe's convention."""
    return f"advantages@{context.recipe.advantage_mean}/{context.recipe.advantage_std}"


def formula(context: Context) -> str:
    """How the rewards give the recomputed advantage; the stored one may be another."""
    there = not lacking(context, (recomputed(context),)) and context.branch is not None
    if not there or not bool(context.trace.advantages.valid[context.row]):
        return ""
    of_rows = replace(context.recipe, reward_kl="none", advantage_whiten="none", advantage_clip=0.0)
    first, *below = advantage_formula(of_rows, context.branch).splitlines()
    return "\n".join([first.replace("<<advantages>>", f"<<{recomputed(context)}>>", 1), *below])


def rows(context: Context) -> list[dict]:
    """From reward to advantage, as far as the file tells, and the stored advantage beside it."""
    names = [name for name in ("reward", "baseline", "scale", recomputed(context)) if not lacking(context, (name,))]
    stored = [] if lacking(context, ("advantages",)) or context.trace.batch.advantages is None else ["advantages"]
    valid = context.trace.advantages.valid.tolist()

    def cells(row: int) -> list:
        mine = [context.number(name, row) if valid[row] else "–" for name in names]
        both = bool(stored) and recomputed(context) in names and valid[row]
        return mine + [context.number(name, row, hot=True, off=both and apart(context, row)) for name in stored]

    heads = [context.label("column_recomputed") if "@" in name else name for name in names]
    heads += [context.label("column_stored")] * len(stored)
    words = said(context, (recomputed(context),))
    words += said(context, ("token_advantages",)) if not stored and not context.own_advantages else []
    if not heads:
        return words
    odd = sum(apart(context, row) for row in context.rows.shown if valid[row]) if len(stored) and len(heads) > 1 else 0
    told = [text(html=context.html(context.label("stored_differ", rows=odd)))] if odd else []
    return [*words, *told, table(
        columns=[context.label("column_row"), *heads],
        rows=[[row_label(context, row), *cells(row)] for row in context.rows.shown],
        row_ids=context.rows.shown, title=context.label("advantage_rows"),
        caption_html=context.html(context.label("stored_caption" if stored else "recomputed_caption")),
    )]  # fmt: skip


def apart(context: Context, row: int) -> bool:
    """Whether stored and recomputed advantage differ by more than rounding."""
    if lacking(context, (recomputed(context),)):
        return False
    ours, theirs = context.value(recomputed(context), row), context.value("advantages", row)
    return not abs(ours - theirs) <= APART * max(1.0, abs(ours), abs(theirs)) and not (ours != ours and theirs != theirs)
