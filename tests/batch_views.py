"""A batch file in the lessons: offered, looked at, and every displayed number compared with the file's own."""

import json

from displayed import expected, numbers_in, settings_for

from lessons import view
from lessons.lesson import Selection
from lessons.numbers import shown

STORED = ("policy_logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy")
MOST_BYTES = 300_000


def offered(batch, name="a batch.json", **more):
    """The recipe of a batch that is on offer."""
    sources = view.bench().sources
    return sources.recipe(sources.offer_batch(batch, name, **more))


def lesson(recipe, slug, row=0, pos=-1):
    selection = Selection(lesson=slug, row=row, pos=pos)
    return view.context_of(recipe, selection), view.view(recipe, selection, {slug: ""})


def of_file(batch, name, row, pos, place):
    """A displayed number as the file has it; None where the file does not hold it as such."""
    rows = {"input_ids": batch.row_ids, "attention_mask": batch.row_mask, "completion_mask": batch.row_completion_mask}
    if name in rows:
        return rows[name]()[row, pos]
    index = {"rewards": (row, place), "reward_weights": (place,), "logits": (row, (pos or 0) - 1, place)}.get(name)
    index = (row,) if name == "advantages" and batch.advantages is not None and batch.advantages.dim() == 1 else index
    index = (row, pos - int(batch.token_positions()[0])) if name in STORED else index
    whole = getattr(batch, name, None) if index else None
    return None if whole is None else whole[index]


def check_numbers(batch, recipe, slug, **where):
    """Every number of the lesson is the file's, or what grpo_core makes of the file's. Returns how many are its own."""
    context, values = lesson(recipe, slug, **where)
    assert len(json.dumps(values, allow_nan=False)) <= MOST_BYTES
    assert values["picture"]["panels"] and values["picture"]["batch"]["file"]
    own = 0
    for name, row, pos, place, text in numbers_in(values):
        assert text == expected(settings_for(context, name), name, row, pos, place), (slug, name, row, pos)
        value = of_file(batch, name, row, pos, place)
        if value is not None:
            own += 1
            assert text == shown(value.item()), (slug, name, row, pos)
    return own
