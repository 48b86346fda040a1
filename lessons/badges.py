"""The checks beside a lesson: the doctor's own, run on the step or on the batch file that is looked at."""

from typing import TYPE_CHECKING

from grpo_core import CHECKS, Evidence, run_checks
from grpo_core.doctor import Outcome

if TYPE_CHECKING:
    from .lesson import Context

# Checks whose badge hangs in a lesson only where they find something in a batch file: beside those that always hang there.
ALSO = {
    "prompt": ("prompt_truncated", "prompt_ids_match_engine", "position_ids_count", "attention_mask_holes"),
    "sample": (
        "row_lengths_agree", "retokenisation_drift", "finished_without_eos", "rollout_logprob_finite", "rollout_logprob_mode",
        "truncated_support_bias",
    ),
    "rewards": ("reward_imputed",),
    "advantages": (
        "advantage_recompute", "advantage_row_constant", "group_contiguity", "group_id_vs_prompt", "empty_completion_in_group",
    ),
    "masks": (
        "mask_shift", "first_token_scored", "secondary_eos", "tool_tokens_in_loss", "packed_boundary_labels",
        "mask_nonempty", "prompt_tokens_in_loss", "truncated_rows_in_loss",
    ),
    "logits": ("temperature_consistency", "entropy_finite"),
    "gather": ("logprob_positive", "nonfinite_under_mask0"),
    "ratio": (
        "logprob_hypotheses", "logprob_units", "logprob_dtype_mix", "dropout_active", "padding_invariance_model",
        "old_equals_ref", "stale_iteration", "seq_weight_definition", "ratio_identically_one",
    ),
    "kl": (
        "reference_is_policy", "kl_logratio_range", "kl_has_grad", "kl_estimator_in_loss", "kl_metric",
        "kl_outliers_not_sampled",
    ),
    "aggregation": (
        "aggregation_fingerprint", "padding_invariance", "expected_on_policy_loss", "loss_sign_explain", "loss_finite",
    ),
    "backward": ("requires_grad",),
}  # fmt: skip
MOST = 2**17  # rows x scored columns of a batch file up to which those are looked for while somebody waits
OF_UPDATE = ("backward_finite", "update_applied", "update_direction")  # a batch file shows no update


def outcomes(context: "Context", names: tuple[str, ...]) -> list[Outcome]:
    """What each of these checks says."""
    if context.of_file:
        return [_of_file(context, name) for name in names if name not in OF_UPDATE]
    checks = [CHECKS[name] for name in names]
    needs = {need for check in checks for need in check.needs}
    evidence = Evidence.of_trace(
        context.trace, update=context.update_index, policy=context.policy, token=(context.row, context.column),
        row=context.vocabulary if "row" in needs else None, effect=context.effect,
    )  # fmt: skip
    return run_checks(evidence, checks)


def hanging(slug: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """All badges that a lesson may show of a batch file: its own, and those that hang there when they find something."""
    return (*names, *ALSO.get(slug, ()))


def found_beside(context: "Context") -> list[Outcome]:
    """What else was found in this batch file, by checks that belong to this lesson."""
    if not context.of_file or context.trace.batch.trained_mask().numel() > MOST:
        return []
    told = outcomes(context, ALSO.get(context.selection.lesson, ()))
    return [outcome for outcome in told if outcome.status in ("error", "warning", "info")]


def _of_file(context: "Context", name: str) -> Outcome:
    """One check on the file as it is: of our records only what the check cannot do without."""
    check, source = CHECKS[name], context.source
    assert source is not None
    local = "row" in check.needs or "token" in check.needs
    key = ("outcome", context.recipe, name, context.place if local else None)
    return context.bench.keep(key, lambda: _run(context, name))


def _run(context: "Context", name: str) -> Outcome:
    check, source = CHECKS[name], context.source
    assert source is not None
    ours = context.trace if "trace" in check.needs and context.trace.updates else None
    looked_at = {"token": (context.row, context.column), "row": context.distribution} if context.is_trained else {}
    evidence = Evidence(batch=source.batch, policy=source.policy, preset=source.preset, trace=ours, **looked_at)
    try:
        return run_checks(evidence, [check])[0]
    except ValueError as error:  # the file contradicts itself: one line that names the field
        return Outcome(check=name, status="skipped", needs=(str(error),))
