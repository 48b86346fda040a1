"""The table of checks. Each takes `Evidence` and returns what it noticed: nothing where all is well."""

from .finding import Check
from .groups import advantage_group_sum, advantage_magnitude, group_size_min, reward_finite, zero_std_groups
from .loss_checks import (
    backward_finite,
    clip_fraction_by_gradient,
    denominator_matches_mask,
    logit_gradient_closed_form,
    logprob_gradient_closed_form,
    loss_zero_explain,
    split_invariance,
    update_applied,
    update_direction,
)  # fmt: skip
from .scores import (
    gather_matches_sampler,
    kl_nonnegative,
    kl_step0_zero,
    probabilities_sum,
    ratio_first_step,
    sampler_logprobs_match,
    shift_probe,
)  # fmt: skip
from .tokens import double_bos, eos_in_mask, ids_in_vocab, mask_after_eos

_TABLE = (
    Check(name="ids_in_vocab", run=ids_in_vocab, needs=("policy",)),
    Check(name="double_bos", run=double_bos, needs=("policy",)),
    Check(name="sampler_logprobs_match", run=sampler_logprobs_match),
    Check(name="reward_finite", run=reward_finite),
    Check(name="group_size_min", run=group_size_min),
    Check(name="advantage_group_sum", run=advantage_group_sum),
    Check(name="advantage_magnitude", run=advantage_magnitude),
    Check(name="zero_std_groups", run=zero_std_groups),
    Check(name="eos_in_mask", run=eos_in_mask, needs=("policy",)),
    Check(name="mask_after_eos", run=mask_after_eos, needs=("policy",)),
    Check(name="probabilities_sum", run=probabilities_sum, needs=("row",)),
    Check(name="shift_probe", run=shift_probe),
    Check(name="gather_matches_sampler", run=gather_matches_sampler, needs=("row", "token")),
    Check(name="ratio_first_step", run=ratio_first_step),
    Check(name="kl_nonnegative", run=kl_nonnegative),
    Check(name="kl_step0_zero", run=kl_step0_zero),
    Check(name="clip_fraction_by_gradient", run=clip_fraction_by_gradient),
    Check(name="denominator_matches_mask", run=denominator_matches_mask),
    Check(name="split_invariance", run=split_invariance),
    Check(name="loss_zero_explain", run=loss_zero_explain),
    Check(name="logprob_gradient_closed_form", run=logprob_gradient_closed_form),
    Check(name="logit_gradient_closed_form", run=logit_gradient_closed_form, needs=("row", "token")),
    Check(name="backward_finite", run=backward_finite),
    Check(name="update_applied", run=update_applied),
    Check(name="update_direction", run=update_direction, needs=("effect",)),
)
CHECKS = {check.name: check for check in _TABLE}
