"""The table of checks, causes before consequences. Each takes `Evidence` and returns what it noticed.

`explains` names the checks that find what follows from a check's own finding; in a report the cause comes before them.
"""

from . import (
    advantages,
    explains,
    finite,
    groups,
    kl_checks,
    loss_checks,
    masks,
    metric_checks,
    prompts,
    reported,
    rescored,
    reward_checks,
    scores,
    shift,
    tokens,
    vocabulary,
    weights,
)
from .finding import Check, Evidence, Finding

PRINTED = (
    "aggregation_fingerprint", "denominator_matches_mask", "split_invariance", "padding_invariance",
    "clip_fraction_by_gradient", "kl_metric", "loss_finite",
)  # fmt: skip
ADVANTAGES = ("advantage_recompute", "advantage_group_sum", "advantage_magnitude", "advantage_row_constant", *PRINTED)
RATIOS = (
    "sampler_logprobs_match", "ratio_first_step", "kl_step0_zero", "old_equals_ref", "seq_weight_definition",
    "padding_invariance_model", "truncated_support_bias", "dropout_active",
)  # fmt: skip
TRAINED = ("mask_nonempty", "group_id_vs_prompt", *PRINTED)
SHAPES = (
    "ids_in_vocab", "eos_in_mask", "secondary_eos", "mask_after_eos", "finished_without_eos", "tool_tokens_in_loss",
    "mask_shift", "first_token_scored", "attention_mask_holes", "nonfinite_under_mask0", "retokenisation_drift",
    *TRAINED, *RATIOS,
)  # fmt: skip


def shift_probe(evidence: Evidence) -> list[Finding]:
    """From logits or a model where there are any, else the sampler's log-probs against the trainer's."""
    found = [] if evidence.trace is not None else rescored.shift_probe(evidence)
    batch = evidence.batch
    both = batch.sampler_logprobs is not None and batch.old_logprobs is not None
    return found or (scores.sampler_offset(evidence) if both else [])


BOTH = ("policy_logprobs", "old_logprobs")
SAMPLED = ("sampler_logprobs", "old_logprobs or policy_logprobs")
REFERENCE = ("policy_logprobs", "ref_logprobs")
SCORED = ("logits or --model",)
LOSS = ("policy_logprobs or logits", "advantages")
WORTH = ("advantages", "rewards", "group_ids")

_TABLE = (
    # ---- one row, one length; ids that exist ----
    Check(name="row_lengths_agree", run=masks.row_lengths_agree, explains=SHAPES),
    Check(name="ids_in_vocab", run=tokens.ids_in_vocab, needs=("meta.vocab_size or logits or --model",), explains=RATIOS),
    # ---- engine and trainer read the same ----
    Check(name="prompt_truncated", run=prompts.prompt_truncated, explains=RATIOS,
          needs=("sampler_prompt_ids or meta.max_prompt_length",)),
    Check(name="double_bos", run=prompts.double_bos, needs=("meta.bos_token_id or policy",), explains=RATIOS),
    Check(name="prompt_ids_match_engine", run=prompts.prompt_ids_match_engine, needs=("sampler_prompt_ids",), explains=RATIOS),
    Check(name="retokenisation_drift", run=prompts.retokenisation_drift, needs=("sampled_ids or --model",),
          explains=RATIOS),
    Check(name="attention_mask_holes", run=masks.attention_mask_holes, explains=RATIOS),
    Check(name="position_ids_count", run=prompts.position_ids_count, needs=("position_ids",), explains=RATIOS),
    # ---- which tokens are trained ----
    Check(name="packed_boundary_labels", run=masks.packed_boundary_labels, needs=("meta.packed_boundaries",), explains=TRAINED),
    Check(name="mask_shift", run=shift.mask_shift,
          explains=("first_token_scored", "mask_after_eos", "eos_in_mask", "secondary_eos", *TRAINED)),
    Check(name="first_token_scored", run=shift.first_token_scored, explains=TRAINED),
    Check(name="secondary_eos", run=tokens.secondary_eos, needs=("eos_token_ids",), explains=("mask_after_eos", *TRAINED)),
    Check(name="eos_in_mask", run=tokens.eos_in_mask, needs=("eos_token_ids",), explains=TRAINED),
    Check(name="mask_after_eos", run=tokens.mask_after_eos, needs=("eos_token_ids",), explains=TRAINED),
    Check(name="finished_without_eos", run=tokens.finished_without_eos, needs=("eos_token_ids",)),
    Check(name="tool_tokens_in_loss", run=masks.tool_tokens_in_loss, needs=("tool_mask",), explains=TRAINED),
    Check(name="prompt_tokens_in_loss", run=masks.prompt_tokens_in_loss, needs=("loss_mask",), explains=TRAINED),
    Check(name="truncated_rows_in_loss", run=masks.truncated_rows_in_loss, explains=TRAINED,
          needs=("loss_mask", "finish_reasons", "meta.mask_truncated")),
    Check(name="mask_nonempty", run=masks.mask_nonempty, explains=PRINTED),
    # ---- numbers that are none ----
    Check(name="rollout_logprob_finite", run=finite.rollout_logprob_finite, explains=("backward_finite", *RATIOS, *PRINTED),
          needs=("policy_logprobs or old_logprobs or sampler_logprobs",)),
    Check(name="logprob_positive", run=finite.logprob_positive, explains=(*RATIOS, *PRINTED),
          needs=("policy_logprobs or old_logprobs or sampler_logprobs",)),
    Check(name="nonfinite_under_mask0", run=finite.nonfinite_under_mask0, explains=("backward_finite", *PRINTED),
          needs=("policy_logprobs or old_logprobs or entropy or advantages",)),
    Check(name="entropy_finite", run=finite.entropy_finite, needs=("entropy or logits or reported.entropy",), explains=PRINTED),
    # ---- how the log-probs were made ----
    Check(name="logprob_hypotheses", run=rescored.logprob_hypotheses, needs=SCORED, explains=RATIOS),
    Check(name="temperature_consistency", run=rescored.temperature_consistency, needs=SCORED, explains=RATIOS),
    Check(name="rollout_logprob_mode", run=rescored.rollout_logprob_mode, needs=SCORED, explains=RATIOS),
    Check(name="logprob_units", run=rescored.logprob_units, needs=("sampler_logprobs or old_logprobs",), explains=RATIOS),
    Check(name="shift_probe", run=shift_probe, needs=("logits or --model or sampler_logprobs",), explains=RATIOS),
    Check(name="dropout_active", run=rescored.dropout_active, explains=RATIOS,
          needs=("policy_logprobs or old_logprobs or sampler_logprobs",)),
    Check(name="logprob_dtype_mix", run=rescored.logprob_dtype_mix, needs=("policy_logprobs",), explains=RATIOS),
    Check(name="truncated_support_bias", run=rescored.truncated_support_bias, needs=SAMPLED, explains=RATIOS),
    Check(name="padding_invariance_model", run=rescored.padding_invariance_model, explains=RATIOS,
          needs=("logits or --model or sampler_logprobs",)),
    Check(name="old_equals_ref", run=scores.old_equals_ref, needs=(*BOTH, "ref_logprobs"), explains=RATIOS),
    Check(name="sampler_logprobs_match", run=scores.sampler_logprobs_match, needs=SAMPLED, explains=("seq_weight_definition",)),
    Check(name="ratio_first_step", run=scores.ratio_first_step, needs=BOTH, explains=PRINTED),
    Check(name="stale_iteration", run=scores.stale_iteration, needs=("meta.iteration", "policy_logprobs")),
    Check(name="seq_weight_definition", run=weights.seq_weight_definition, needs=SAMPLED, explains=PRINTED),
    # ---- rewards, groups, advantages ----
    Check(name="reward_finite", run=reward_checks.reward_finite, needs=("rewards",),
          explains=("group_size_min", "reward_imputed", "zero_std_groups", *ADVANTAGES)),
    Check(name="reward_imputed", run=reward_checks.reward_imputed, needs=("rewards", "advantages"), explains=ADVANTAGES),
    Check(name="group_contiguity", run=groups.group_contiguity, needs=("meta.num_generations",), explains=ADVANTAGES),
    Check(name="group_id_vs_prompt", run=groups.group_id_vs_prompt, needs=("batch.group_ids",), explains=ADVANTAGES),
    Check(name="group_size_min", run=groups.group_size_min, needs=("group_ids",), explains=ADVANTAGES),
    Check(name="empty_completion_in_group", run=groups.empty_completion_in_group, needs=("group_ids",), explains=ADVANTAGES),
    Check(name="advantage_group_sum", run=advantages.advantage_group_sum, needs=("advantages", "group_ids")),
    Check(name="advantage_magnitude", run=advantages.advantage_magnitude, needs=("advantages", "group_ids")),
    Check(name="advantage_recompute", run=advantages.advantage_recompute, needs=WORTH, explains=PRINTED),
    Check(name="advantage_row_constant", run=advantages.advantage_row_constant, needs=("advantages",), explains=PRINTED),
    Check(name="zero_std_groups", run=groups.zero_std_groups, needs=("rewards", "group_ids"), explains=("loss_zero_explain",)),
    # ---- KL and reference ----
    Check(name="kl_step0_zero", run=kl_checks.kl_step0_zero, needs=REFERENCE),
    Check(name="reference_is_policy", run=kl_checks.reference_is_policy, needs=REFERENCE),
    Check(name="kl_logratio_range", run=kl_checks.kl_logratio_range, needs=REFERENCE, explains=("backward_finite", *PRINTED)),
    Check(name="kl_nonnegative", run=kl_checks.kl_nonnegative, needs=("trace",)),
    Check(name="kl_has_grad", run=kl_checks.kl_has_grad, needs=("trace",)),
    Check(name="kl_estimator_in_loss", run=kl_checks.kl_estimator_in_loss, needs=(*LOSS, "ref_logprobs")),
    # ---- from token losses to the printed numbers ----
    Check(name="kl_outliers_not_sampled", run=metric_checks.kl_outliers_not_sampled, explains=PRINTED,
          needs=("tool_mask", "reported.kl", *REFERENCE)),
    Check(name="padding_invariance", run=rescored.padding_invariance, needs=("policy_logprobs or logits",), explains=PRINTED),
    Check(name="denominator_matches_mask", run=loss_checks.denominator_matches_mask, needs=("trace or reported.num_items",),
          explains=("aggregation_fingerprint",)),
    Check(name="split_invariance", run=loss_checks.split_invariance, needs=("trace or reported.loss",)),
    Check(name="aggregation_fingerprint", run=reported.aggregation_fingerprint, needs=("reported.loss", *LOSS)),
    Check(name="clip_fraction_by_gradient", run=loss_checks.clip_fraction_by_gradient,
          needs=("trace or reported.clip_fraction",)),
    Check(name="kl_metric", run=metric_checks.printed_kl_estimator, needs=("reported.kl", *REFERENCE)),
    Check(name="loss_finite", run=finite.loss_finite, needs=("reported.loss", *LOSS)),
    Check(name="backward_finite", run=finite.backward_finite, needs=("trace or reported.grad_norm",)),
    Check(name="requires_grad", run=metric_checks.requires_grad, needs=("reported.grad_norm", *LOSS)),
    # ---- right after all ----
    Check(name="ratio_identically_one", run=scores.ratio_identically_one, needs=BOTH),
    Check(name="expected_on_policy_loss", run=explains.expected_on_policy_loss, needs=LOSS),
    Check(name="loss_zero_explain", run=explains.loss_zero_explain, needs=("trace or advantages",)),
    Check(name="loss_sign_explain", run=explains.loss_sign_explain, needs=("reported.loss", *LOSS)),
    # ---- a step of our own ----
    Check(name="probabilities_sum", run=vocabulary.probabilities_sum, needs=("trace", "row")),
    Check(name="gather_matches_sampler", run=vocabulary.gather_matches_sampler, needs=("trace", "row", "token")),
    Check(name="logprob_gradient_closed_form", run=loss_checks.logprob_gradient_closed_form, needs=("trace",)),
    Check(name="logit_gradient_closed_form", run=loss_checks.logit_gradient_closed_form, needs=("trace", "row", "token")),
    Check(name="update_applied", run=loss_checks.update_applied, needs=("trace",)),
    Check(name="update_direction", run=loss_checks.update_direction, needs=("trace", "effect")),
)  # fmt: skip
CHECKS = {check.name: check for check in _TABLE}
assert all(name in CHECKS for check in _TABLE for name in check.explains), "a check explains one that does not exist"
