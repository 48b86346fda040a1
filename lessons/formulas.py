r"""The formulas that a convention makes of the tables' rows: LaTeX with slots, for the lessons and for comparing trainers.

One formula per line, the main one first, what it refers to below; `condition:\quad formula` where a rule has cases.
Without `at` every case and every bound is written; with the selected token's `Branch` only the case that it went through,
and bounds only where they bind. `sg[…]` is a constant for the gradient, `[…]` around a
condition 1 where it holds and 0 elsewhere.
"""

import re
from collections.abc import Sequence

from grpo_core.convention import Convention
from grpo_core.workings import Branch

from . import formula_rows as rows
from .formula_rows import OLD, POLICY, REF, SAMPLER

X = re.compile(r"(?<![a-zA-Z])x(?![a-zA-Z_])")


# ---- rewards and advantages ------------------------------------------------------------------------------------------------
def per_token(convention: Convention) -> bool:
    """Whether a token's advantage may be another number than its row's."""
    return bool(kl_after(convention) or convention.advantage_clip) or convention.advantage_whiten != "none"


def kl_after(convention: Convention) -> bool:
    return convention.reward_kl == "after" and convention.reward_kl_coef != 0


def kl_before(convention: Convention) -> bool:
    return convention.reward_kl == "before" and convention.reward_kl_coef != 0


def advantage_of(convention: Convention) -> str:
    """The quantity that the loss multiplies with."""
    return "token_advantages" if per_token(convention) else "advantages"


def reward_formula(convention: Convention, functions: Sequence[int]) -> str:
    """The row's reward out of the reward functions (by number) that answered."""
    value = " + ".join(rf"<<reward_weights.{k}>> \cdot <<rewards.{k}>>" for k in functions)
    if convention.reward_shift:
        value += " + <<reward_shift>>"
    if convention.reward_scale != 1:
        value = rf"({value}) \cdot <<reward_scale>>"
    value = bounded(value, "reward_clip", bool(convention.reward_clip))
    if not kl_before(convention):
        return f"<<reward>> = {value}"
    sum_ = r"<<penalty|\sum_t \kappa_t>>"
    return "\n".join([f"<<reward>> = {value} - {sum_}", *penalty_lines(convention)])


def penalty_lines(convention: Convention) -> list[str]:
    """What the KL takes off the reward of one token."""
    estimate = grouped(rows.KL[convention.reward_kl_estimator])
    return [rf"<<token_penalty>> = <<reward_kl_coef>> \cdot {estimate}", f"x = {OLD} - {REF}"]


def advantage_formula(convention: Convention, at: Branch | None = None) -> str:
    """From the row's reward to its advantage, and to its tokens' where these differ."""
    as_it_is = at is not None and at.alone and convention.advantage_alone == "reward"
    baseline = convention.advantage_mean != "none" and not as_it_is
    divided = as_it_is or convention.advantage_std != "none"
    difference = "<<reward>> - <<baseline>>" if baseline else "<<reward>>"
    lines = [rf"<<advantages>> = \frac{{{difference}}}{{<<scale>>}}" if divided else f"<<advantages>> = {difference}"]
    if baseline:
        own = at is not None and at.alone and convention.advantage_mean == "leave-one-out"
        lines.append("<<baseline>> = " + ("<<reward>>" if own else rows.BASELINE[convention.advantage_mean]))
    if as_it_is:
        lines.append("<<scale>> = 1 + <<advantage_eps>>")
    elif divided and at is not None and not at.spread:
        lines.append("<<scale>> = 1")
    elif divided:
        lines += ["<<scale>> = <<group_std>> + <<advantage_eps>>", f"<<group_std>>^2 = {rows.SPREAD[convention.advantage_std]}"]
    return "\n".join(lines + token_lines(convention, at))


def token_lines(convention: Convention, at: Branch | None = None) -> list[str]:
    """From the row's advantage to its token's; nothing where they are the same."""
    if not per_token(convention):
        return []
    value, below = "<<advantages>>", []
    if kl_after(convention):
        left = r"<<advantages>> - <<penalty_to_come|\sum_{s \ge t} \kappa_s>>"
        alone = convention.advantage_whiten == "none"
        value, below = (left, []) if alone else ("u", [f"u = {left}"])
        below += penalty_lines(convention)
    if at is None or at.whitened:
        value = rows.WHITENED[convention.advantage_whiten].replace("VALUE", value)
    return [f"<<token_advantages>> = {bounded(value, 'advantage_clip', bool(convention.advantage_clip))}", *below]


# ---- ratio and KL ----------------------------------------------------------------------------------------------------------
def base_of(convention: Convention) -> str:
    """The log-prob that the ratio divides by."""
    return {"old": OLD, "sampler": SAMPLER}[convention.ratio_against]


def ratio_formula(convention: Convention, at: Branch | None = None) -> str:
    binds = at.log_ratio_bound if at else convention.log_ratio_bound < 80
    difference = f"{POLICY} - {base_of(convention)}"
    if convention.ratio == "token" and not binds:
        return rf"<<ratio>> = \exp({difference})"
    mean = bounded(rows.RATIO[convention.ratio], "log_ratio_bound", binds)
    return "\n".join([r"<<ratio>> = \exp(<<log_ratio>>)", f"<<log_ratio>> = {mean}", f"x_t = {difference}"])


def kl_formula(convention: Convention, at: Branch | None = None) -> str:
    outside = at.kl_output_bound if at else bool(convention.kl_output_bound)
    value, gradient = rows.KL[convention.kl_estimator], rows.KL_GRADIENT[convention.kl_gradient]
    difference = kl_difference(convention, at)
    if convention.kl_gradient == "plain":
        return f"<<kl>> = {bounded(value, 'kl_output_bound', outside)}\n{difference}"
    if "q" in gradient:  # straight-through: only the value is bounded
        value = bounded(value, "kl_output_bound", outside)
    else:
        gradient = bounded(gradient, "kl_output_bound", outside)
    square = [f"q = {rows.KL['k2']}"] if "q" in gradient else []
    return "\n".join([f"<<kl>> = {gradient}", f"k = {value}", *square, difference])


def kl_difference(convention: Convention, at: Branch | None = None) -> str:
    inside = at.kl_input_bound if at else convention.kl_input_bound < 80
    other = {"ref": REF, "sampler": SAMPLER}[convention.kl_against]
    return f"x = {bounded(f'{POLICY} - {other}', 'kl_input_bound', inside)}"


# ---- surrogate, correction, weights, loss ----------------------------------------------------------------------------------
def corrected(convention: Convention) -> bool:
    """Whether a token's loss is multiplied with something."""
    return convention.correction != "none" or bool(convention.gates)


def surrogate_formula(convention: Convention, at: Branch | None = None) -> str:
    """The token's loss, its correction included."""
    factor = r"<<correction>> \cdot " if corrected(convention) else ""
    own = cases(rows.SURROGATE[convention.surrogate], convention, at, "<<token_loss>> = ")
    below = cases(rows.WHERE.get(convention.surrogate, ()), convention, at)
    return "\n".join([line.replace("@", factor) for line in own] + below + correction_lines(convention))


def correction_lines(convention: Convention) -> list[str]:
    """What the token's loss is multiplied with; nothing where there is nothing."""
    factors, below = [], []
    if convention.correction != "none":
        below = ["v = " + rows.CORRECTION[convention.correction]]
        both, low, high = rows.BOUND[convention.correction_bound]
        ends = bool(convention.correction_low), bool(convention.correction_high)
        bound = {(True, True): both, (True, False): low, (False, True): high, (False, False): "v"}[ends]
        factors.append(bound.replace("LOW", "<<correction_low>>").replace("HIGH", "<<correction_high>>"))
    factors += [rf"[{rows.GATE[gate]}]".replace("ADV", f"<<{advantage_of(convention)}>>") for gate in convention.gates]
    return [r"<<correction>> = " + r" \cdot ".join(factors), *below] if factors else []


def aggregation_formula(convention: Convention) -> str:
    """The token's weight, and the weights of its KL and entropy where these are others and count."""
    named = [("token_weight", "same", True)]
    named += [("kl_weight", convention.kl_aggregation, bool(convention.beta))]
    named += [("entropy_weight", convention.entropy_aggregation, bool(convention.entropy_coef))]
    counted = "<<num_rows>>" if convention.count_empty_rows else "<<counted_rows>>"
    lines = []
    for name, own, counts in named:
        other = own not in ("same", convention.aggregation)
        if name == "token_weight" or (other and counts):
            weight = rows.AGGREGATION[own if other else convention.aggregation].replace("ROWS", counted)
            lines.append(f"<<{name}>> = {weight}")
    return "\n".join(lines)


def loss_formula(convention: Convention) -> str:
    """What the loss is the sum of."""
    weights = [w not in ("same", convention.aggregation) for w in (convention.kl_aggregation, convention.entropy_aggregation)]
    kl, entropy = (rf"w^{{{mark}}}_t" if own else "w_t" for mark, own in zip((r"\mathrm{KL}", "H"), weights, strict=True))
    total, parts = "<<policy_loss>>", [r"<<policy_loss>> = \sum_{i,t} w_t \ell_t"]
    if convention.beta:
        total += r" + <<beta>> \cdot <<kl_loss>>"
        parts.append(rf"<<kl_loss>> = \sum_{{i,t}} {kl} \, \mathrm{{kl}}_t")
    if convention.entropy_coef:
        total += r" - <<entropy_coef>> \cdot <<entropy_loss>>"
        parts.append(rf"<<entropy_loss>> = \sum_{{i,t}} {entropy} H_t")
    return "\n".join([f"<<loss>> = {total}", *parts])


# ---- gradient --------------------------------------------------------------------------------------------------------------
def gradient_formula(convention: Convention, at: Branch) -> str:
    """d loss / d log-prob of the token; empty where no closed form is written for the surrogate."""
    if convention.surrogate not in rows.PULL:
        return ""
    shared = convention.ratio in ("sequence", "segment")
    through, below = convention.surrogate in rows.THROUGH_RATIO, []
    if through and (shared or at.log_ratio_bound):
        policy = r"<<policy_grad|\partial L_\pi / \partial \log \pi_\theta>>"
    else:
        (pull,) = cases(rows.PULL[convention.surrogate], convention, at)
        factor = r"<<correction>> \cdot " if corrected(convention) else ""
        policy = rf"<<token_weight>> \cdot {factor}({pull})"
        below = cases(rows.WHERE["vespo"], convention, at) if convention.surrogate == "vespo" else []
        if convention.surrogate == "sapo":
            tau = "<<sapo_positive>>" if at.sign > 0 else "<<sapo_other>>"
            below = [rf"s = \sigma({tau} \cdot (<<ratio>> - 1))"]
    if convention.beta:
        kl = kl_pull(convention, at)
        short = len(kl) == 1
        own = rf"<<beta>> \cdot <<kl_weight>> \cdot {kl if short else 'h'}" if kl else "<<kl_grad>>"
        policy, below = f"{policy} + {own}", below + ([] if short or not kl else [f"h = {kl}"])
        below += [kl_difference(convention, at)] if X.search(kl) else []
    return "\n".join([f"<<logprob_grad>> = {policy}", *below])


def kl_pull(convention: Convention, at: Branch) -> str:
    """The KL's part of the gradient; empty where a bound binds or the token shares its ratio with others."""
    shared = convention.kl_gradient == "times-ratio" and (convention.ratio in ("sequence", "segment") or at.log_ratio_bound)
    if shared or at.kl_input_bound or at.kl_output_bound:
        return ""
    name = convention.kl_estimator
    both = rows.KL_SUM[name] if convention.kl_gradient == "score" else grouped(rows.KL_SUM[name])
    return rows.KL_PULL[convention.kl_gradient].replace("SLOPE", rows.KL_SLOPE[name]).replace("SUM", both)


def logit_formula(convention: Convention) -> str:
    """d loss / d logit of the sampled token."""
    bonus = r"b = <<entropy_coef>> \cdot <<entropy_weight>> \cdot <<probs>> \cdot (<<logprobs>> + <<entropy>>)"
    pull = r"(1 - <<probs>>) \cdot <<logprob_grad>>" + (" + b" if convention.entropy_coef else "")
    return "\n".join([rf"<<logit_grad>> = \frac{{{pull}}}{{<<temperature>>}}", *([bonus] if convention.entropy_coef else [])])


# ---- putting together ------------------------------------------------------------------------------------------------------
def cases(table: tuple, convention: Convention, at: Branch | None, left: str = "") -> list[str]:
    """The lines of a rule: all of its cases, or the token's own."""
    kept = [(condition, formula) for condition, holds, formula in table if at is None or holds(at)]
    lines = [(rf"{condition}:\quad " if condition else "") + left + formula for condition, formula in kept]
    slot = f"<<{advantage_of(convention)}>>"
    return [line.replace("ADV", slot).replace("BASE", base_of(convention)) for line in lines]


def bounded(value: str, setting: str, binds: bool) -> str:
    """Between minus and plus a setting, where that binds."""
    return rf"\operatorname{{clip}}({value},\, -<<{setting}>>,\, <<{setting}>>)" if binds else value


def grouped(value: str) -> str:
    """In brackets where it is a sum."""
    return f"({value})" if (" + " in value or " - " in value) and not value.startswith((r"\operatorname", r"\min")) else value
