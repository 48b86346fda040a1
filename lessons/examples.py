"""Worked examples and marked mistakes as panels. Their numbers come from `grpo_core.examples`; here they are laid out."""

from grpo_core import examples

from .components import exhibit, table
from .lesson import Context
from .numbers import shown


def _exhibit(context: Context, key: str, said_value: str, right_value: str) -> dict:
    """An exhibit whose words are `exhibit_<key>…` of ui.md."""
    texts = {part: context.label(f"exhibit_{key}_{part}") for part in ("name", "said", "right")}
    return exhibit(
        **texts, said_value=said_value, right_value=right_value, why_html=context.html(context.label(f"exhibit_{key}_why"))
    )


def _list(values) -> str:
    return "[" + ", ".join(shown(v) for v in values) + "]"


def gather_example(context: Context) -> list[dict]:
    example = examples.gather_by_hand()
    rows = [
        [shown(t), _list(row), shown(i), shown(p)]
        for t, (row, i, p) in enumerate(
            zip(example.logprobs.tolist(), example.ids.tolist(), example.picked.tolist(), strict=True)
        )
    ]
    by_hand = table(
        columns=["t", "logprobs", "labels", "gather"], rows=rows, title=context.label("gather_by_hand"),
        caption_html=context.html(context.label("gather_by_hand_caption")),
    )  # fmt: skip
    sums = _exhibit(context, "logprob_sum", _list(example.probability_sums.tolist()), "[1, 1, 1]")
    broadcast = _exhibit(context, "broadcast", "(2, 3, 1)", str(example.broadcast_shape))
    return [by_hand, sums, broadcast]


def op_compute_log_probs_example(context: Context) -> list[dict]:
    example = examples.masked_labels()
    names = ("input_ids", "response_mask", "targets", "loss_mask", "labels", "gathered", "logprobs")
    code = {"targets": "input_ids[:, 1:]", "loss_mask": "response_mask[:, 1:]"}
    rows = [[code.get(name, name), _list(getattr(example, name)[0].tolist())] for name in names]
    zeroed = table(
        columns=[context.label("column_quantity"), context.label("column_value")], rows=rows,
        title=context.label("masked_labels"), caption_html=context.html(context.label("masked_labels_caption")),
    )  # fmt: skip
    nan, zero = examples.nan_times_zero()
    return [zeroed, _exhibit(context, "nan", shown(nan), shown(zero)), _softmax(context)]


def _softmax(context: Context) -> dict:
    values = examples.log_of_softmax()
    said = ", ".join(shown(said) for said, _ in values.values())
    return _exhibit(context, "softmax", said, ", ".join(shown(right) for _, right in values.values()))


def kl_examples(context: Context) -> list[dict]:
    two = examples.two_distributions()
    rows = [
        ["KL(ref ‖ policy)", shown(two.kl_ref_policy)], ["KL(policy ‖ ref)", shown(two.kl_policy_ref)],
        ["E[k3]", shown(two.k3_expectation)],
    ]  # fmt: skip
    return [
        table(
            columns=[context.label("column_quantity"), context.label("column_value")], rows=rows,
            title=context.label("kl_by_hand"),
            caption_html=context.html(
                context.label("kl_by_hand_caption", ref=_list(two.ref.tolist()), policy=_list(two.policy.tolist()))
            ),
        ),
        _exhibit(context, "kl_direction", shown(two.kl_ref_policy), shown(two.kl_policy_ref)),
        _exhibit(context, "kl_linear", shown(two.linear_formula), shown(two.k3_expectation)),
        _exhibit(context, "kl_temperature", shown(examples.mixed_temperature_kl()), "0"),
    ]  # fmt: skip


def dual_clip_example(context: Context) -> dict:
    rows = [[shown(ratio), shown(plain), shown(dual)] for ratio, (plain, dual) in examples.dual_clip_table().items()]
    return table(
        columns=["ratio", "min-clip", "dual-clip 1.4"],
        rows=rows,
        title=context.label("dual_clip_by_hand"),
        caption_html=context.html(context.label("dual_clip_by_hand_caption")),
    )


def clip_fraction_example(context: Context) -> dict:
    said, right = examples.clip_fraction_over_padding()
    return _exhibit(context, "clip_fraction", shown(said), shown(right))


def shift_exhibits(context: Context) -> list[dict]:
    """Two slips of the shift: one row of logits too few, and a mask that stays behind."""
    right, said = examples.mask_shift()
    keep = _exhibit(context, "keep", context.label("exhibit_keep_said_value"), context.label("exhibit_keep_right_value"))
    return [keep, _exhibit(context, "mask", _list(said), _list(right))]
