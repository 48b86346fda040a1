"""Old and new side by side after something was changed: the numbers that the change flows through."""

from .absent import lacking
from .components import table
from .lesson import Context
from .quantities import QUANTITIES

FOLLOWED = ("token_loss", "policy_loss", "kl_loss", "loss", "logprob_grad", "grad_norm")


def change(context: Context) -> list[dict]:
    """A table of the selected token's and the step's numbers before and after; nothing where nothing was changed."""
    if context.previous is None or context.of_file != context.before.of_file:
        return []
    same_rollout = context.before.recipe.rollout_key() == context.recipe.rollout_key()
    lines = []
    for name in (context.advantage, *FOLLOWED):
        axes = QUANTITIES[name].axes
        if axes and not same_rollout:
            continue  # the tokens are others: only whole-step numbers can be compared
        place = (context.row, context.pos) if axes == "BT" else (context.row, None) if axes == "B" else (None, None)
        if lacking(context, (name,)) and lacking(context.before, (name,)):
            continue
        before = context.before.number(name, *place)
        before |= {"q": f"{name}@before"} if "q" in before else {}
        pending = name == "grad_norm" and context.step.is_quick
        lines.append([name, before, context.label("out_of_date") if pending else context.number(name, *place)])
    return [
        table(
            columns=[context.label("column_quantity"), context.label("column_before"), context.label("column_now")],
            rows=lines, title=context.label("change_table"), caption_html=context.html(context.label("change_caption")),
        )
    ]  # fmt: skip
