r"""LaTeX of every row of the core's tables, by the row's name: what `formulas.py` puts together for a convention.

`<<quantity>>` is a slot (see formula.py). ADV stands for the advantage's slot, BASE for the log-prob that the ratio divides
by, ROWS for the rows that count, VALUE for what came before; @ is where a correction is multiplied in.
A rule with cases is a tuple of (condition in LaTeX, whether a token's `Branch` is in it, formula).
"""

POLICY, OLD, SAMPLER, REF = "<<policy_logprobs>>", "<<old_logprobs>>", "<<sampler_logprobs>>", "<<ref_logprobs>>"

# ---- rewards -> advantages -------------------------------------------------------------------------------------------------
BASELINE = {
    "group": r"<<group_mean>>", "batch": r"<<batch_mean>>", "none": "0",
    "leave-one-out": r"\frac{<<group_rows>> \cdot <<group_mean>> - <<reward>>}{<<group_rows>> - 1}",
}  # fmt: skip
SQUARES = r"<<spread_squares|\sum_{j} (r_j - \bar r)^2>>"
SPREAD = {  # its square
    "unbiased": rf"\frac{{{SQUARES}}}{{<<spread_rows>> - 1}}",
    "biased": rf"\frac{{{SQUARES}}}{{<<spread_rows>>}}",
    "batch": rf"\frac{{{SQUARES}}}{{<<spread_rows|n>> - 1}}",
    "leave-one-out": r"\frac{<<spread_squares|\sum_{j \ne i} (r_j - \bar r_{-i})^2>>}{<<spread_rows|n_{-i}>> - 1}",
    "none": "0",
}
WHITENED = {
    "none": "VALUE",
    "unbiased": r"\frac{VALUE - <<whiten_mean>>}{\sqrt{<<whiten_variance>> + 10^{-8}}}",
    "biased": r"\frac{VALUE - <<whiten_mean>>}{\sqrt{\max(<<whiten_variance>>,\, 10^{-8})}}",
    "std": r"\frac{VALUE - <<whiten_mean>>}{\sqrt{<<whiten_variance>>} + 10^{-5}}",
}

# ---- ratio and KL: x, x_t differences of log-probs, k the estimate, q that of k2 -------------------------------------------
RATIO = {
    "token": "x_t",
    "sequence": r"\frac{1}{<<row_tokens>>} \cdot <<span_sum|\sum_t x_t>>",
    "sequence-token": r"\operatorname{sg}[\frac{1}{<<row_tokens>>} \cdot <<span_sum|\sum_t x_t>>]"
    r" + x_t - \operatorname{sg}[x_t]",
    "segment": r"\frac{1}{<<span_tokens>>} \cdot <<span_sum|\sum_{t \in \mathrm{turn}} x_t>>",
}
KL = {"k1": "x", "k2": r"\frac{1}{2} \cdot x^2", "k3": "e^{-x} + x - 1", "abs": "|x|"}
KL_SLOPE = {"k1": "1", "k2": "x", "k3": "1 - e^{-x}", "abs": r"\operatorname{sign}(x)"}
KL_SUM = {"k1": "x + 1", "k2": r"\frac{1}{2} \cdot x^2 + x", "k3": "x", "abs": r"|x| + \operatorname{sign}(x)"}  # value + slope
KL_GRADIENT = {
    "plain": "k",
    "times-ratio": r"<<ratio>> \cdot k",
    "straight-through": r"\operatorname{sg}[k - q] + q",
    "weighted-straight-through": r"\operatorname{sg}[k] + \operatorname{sg}[\min(<<ratio>>,\, 10)]"
    r" \cdot (q - \operatorname{sg}[q])",
    "score": rf"k \cdot \exp({POLICY} - \operatorname{{sg}}[{POLICY}])",
    "times-sampler-ratio": rf"k \cdot \exp({POLICY} - {SAMPLER})",
}
KL_PULL = {  # its derivative by the log-prob, where no bound binds and the ratio is the token's own
    "plain": "SLOPE", "times-ratio": r"<<ratio>> \cdot SUM", "straight-through": "x",
    "weighted-straight-through": r"\min(<<ratio>>,\, 10) \cdot x", "score": "SUM",
    "times-sampler-ratio": rf"\exp({POLICY} - {SAMPLER}) \cdot SUM",
}  # fmt: skip


# ---- surrogates ------------------------------------------------------------------------------------------------------------
def _always(formula: str) -> tuple:
    return (("", lambda at: True, formula),)


def _weight(weight: str) -> str:
    return rf"-@\operatorname{{sg}}[{weight}] \cdot ADV \cdot {POLICY}"


POSITIVE, OTHER = ("ADV > 0", lambda at: at.sign > 0), (r"ADV \le 0", lambda at: at.sign <= 0)
NEVER_NEGATIVE, NEGATIVE = (r"ADV \ge 0", lambda at: at.sign >= 0), ("ADV < 0", lambda at: at.sign < 0)
MIN = r"\min(<<ratio>> \cdot ADV,\; <<clipped_ratio>> \cdot ADV)"
PLAIN_RATIO, LOGPROB = r"-@<<ratio>> \cdot ADV", rf"-@ADV \cdot {POLICY}"
TRUNCATED, CAPPED = r"\min(<<ratio>>,\, 1)", r"\min(<<ratio>>,\, <<dual_clip>>)"
SAPO = r"-@\frac{4}{TAU} \cdot \sigma(TAU \cdot (<<ratio>> - 1)) \cdot ADV"
TOO_FAR_UP = (r"ADV > 0 \land \Delta > <<clip_high>>", lambda at: at.left_out and at.sign > 0, "0")


def _dppo(formula: str, falls: str) -> tuple:
    too_far_down = (rf"ADV \le 0 \land {falls}", lambda at: at.left_out and at.sign <= 0, "0")
    return (("", lambda at: not at.left_out, formula), TOO_FAR_UP, too_far_down)


SURROGATE = {
    "min-clip": _always("-@" + MIN),
    "dual-clip": ((*NEVER_NEGATIVE, "-@" + MIN), (*NEGATIVE, r"-@\max(m,\; <<dual_clip>> \cdot ADV)")),
    "two-sided": _always(rf"-@\min({CAPPED} \cdot ADV,\; <<clipped_ratio>> \cdot ADV)"),
    "none": _always(PLAIN_RATIO),
    "sapo": ((*POSITIVE, SAPO.replace("TAU", "<<sapo_positive>>")), (*OTHER, SAPO.replace("TAU", "<<sapo_other>>"))),
    "geometric-mean": _always(r"-@ADV \cdot \exp(\frac{1}{<<row_tokens>>} \cdot <<kept_sum|\sum_t z_t>>)"),
    "clip-cov": (("", lambda at: not at.left_out, "-@" + MIN), (r"t \in \mathcal{D}", lambda at: at.left_out, "0")),
    "kl-cov": (
        ("", lambda at: not at.held, PLAIN_RATIO),
        (r"t \in \mathcal{H}", lambda at: at.held, r"@(<<cov_coef>> \cdot |<<log_ratio>>| - <<ratio>> \cdot ADV)"),
    ),
    "log-prob": _always(LOGPROB),
    "cispo": _always(_weight("<<clipped_ratio>>")),
    "tis": _always(_weight(TRUNCATED)),
    "topr": (
        ("<<reward>> > 0", lambda at: at.rewarded, LOGPROB),
        (r"<<reward>> \le 0", lambda at: not at.rewarded, _weight(TRUNCATED)),
    ),
    "vespo": _always(_weight(r"\varphi")),
    "dppo-tv": _dppo(_weight(CAPPED), r"\Delta < -<<clip_low>>"),
    "dppo-kl": _dppo(_weight(CAPPED), r"\Delta > <<clip_low>>"),
    "dppo-ratio": _dppo(PLAIN_RATIO, r"\Delta < -<<clip_low>>"),
    "quadratic": _always(rf"@(\frac{{<<quadratic_coef>>}}{{2}} \cdot <<log_ratio>>^2 - ADV \cdot {POLICY})"),
}
VESPO = r"\varphi = w^{<<vespo_k_SIGN>>} \cdot e^{<<vespo_rate_SIGN>> \cdot (1 - w)}"
COVARIANCE = _always(rf"u_t = (ADV - <<mean_advantage>>) \cdot ({POLICY} - <<mean_logprob>>)")
MOVED = _always(rf"\Delta = e^{{{POLICY}}} - e^{{BASE}}")
CLIPPED = _always(r"<<clipped_ratio>> = \min(\max(<<ratio>>,\, 1 - <<clip_low>>),\, 1 + <<clip_high>>)")
WHERE = {  # the lines below a surrogate's own
    **dict.fromkeys(("min-clip", "two-sided", "cispo"), CLIPPED),
    "dual-clip": (("", lambda at: at.sign < 0, rf"m = {MIN}"), *CLIPPED),
    "geometric-mean": (
        ("ADV > 0", lambda at: at.sign > 0, r"z_t = \min(<<log_ratio>>,\, <<clip_high>>)"),
        ("ADV < 0", lambda at: at.sign < 0, r"z_t = \max(<<log_ratio>>,\, -<<clip_low>>)"),
        ("ADV = 0", lambda at: at.sign == 0, "z_t = 0"),
    ),
    "clip-cov": CLIPPED + COVARIANCE, "kl-cov": COVARIANCE, "dppo-tv": MOVED, "dppo-ratio": MOVED,
    "dppo-kl": _always(
        rf"\Delta = e^{{BASE}} \cdot (BASE - {POLICY}) + q \cdot \log(\frac{{q + 10^{{-8}}}}{{p + 10^{{-8}}}})"
    ) + _always(r"q = 1 - e^{BASE}") + _always(rf"p = 1 - e^{{{POLICY}}}"),
    "vespo": (
        (*NEVER_NEGATIVE, VESPO.replace("SIGN", "positive")), (*NEGATIVE, VESPO.replace("SIGN", "other")),
        ("", lambda at: not at.row_bound, r"w = \exp(<<row_log_ratio|\sum_t \log \rho_t>>)"),
        ("", lambda at: at.row_bound, r"w = \exp(<<row_log_ratio|\operatorname{clip}(\sum_t \log \rho_t)>>)"),
    ),
}  # fmt: skip
FALLEN = (("", lambda at: at.clipped, "0"), ("", lambda at: not at.clipped, r"-ADV \cdot <<ratio>>"))
SIGMOID = _always(r"-ADV \cdot 4 \cdot s \cdot (1 - s) \cdot <<ratio>>")
DROPPED = (("", lambda at: at.left_out, "0"), ("", lambda at: not at.left_out, rf"-ADV \cdot {CAPPED}"))
PULL = {  # d token loss / d log-prob, the correction left out and the ratio the token's own
    **dict.fromkeys(("min-clip", "dual-clip", "two-sided", "none", "clip-cov", "dppo-ratio"), FALLEN),
    "sapo": SIGMOID, "quadratic": _always(r"<<quadratic_coef>> \cdot <<log_ratio>> - ADV"), "log-prob": _always("-ADV"),
    "cispo": _always(r"-ADV \cdot <<clipped_ratio>>"), "tis": _always(rf"-ADV \cdot {TRUNCATED}"),
    "topr": (("", lambda at: at.rewarded, "-ADV"), ("", lambda at: not at.rewarded, rf"-ADV \cdot {TRUNCATED}")),
    "vespo": _always(r"-ADV \cdot \varphi"), "dppo-tv": DROPPED, "dppo-kl": DROPPED,
}  # fmt: skip
THROUGH_RATIO = ("min-clip", "dual-clip", "two-sided", "none", "clip-cov", "dppo-ratio", "sapo", "quadratic")

# ---- corrections, gates, weights -------------------------------------------------------------------------------------------
LOG_WEIGHT = r"<<log_weight_sum|\sum_t (\log \pi_{\mathrm{old}} - \log \pi_{\mathrm{sampler}})>>"
CORRECTION = {
    "token": rf"\exp({OLD} - {SAMPLER})", "sequence": rf"\exp({LOG_WEIGHT})",
    "geometric": rf"\exp(\frac{{1}}{{<<row_tokens>>}} \cdot {LOG_WEIGHT})",
}  # fmt: skip
BOUND = {  # of a weight v: both ends, the lower alone, the upper alone
    "truncate": (r"\min(\max(v,\, LOW),\, HIGH)", r"\max(v,\, LOW)", r"\min(v,\, HIGH)"),
    "drop": (r"v \cdot [LOW \le v \le HIGH]", r"v \cdot [v \ge LOW]", r"v \cdot [v \le HIGH]"),
}
GATE = {
    "on-policy-rows": r"ADV \ge 0 \lor <<moved_from_old>> \le <<off_policy_threshold>>",
    "sampler-rows": r"ADV \ge 0 \lor <<moved_from_sampler>> \le <<off_policy_threshold>>",
    "top-entropy": r"<<entropy>> \ge <<entropy_threshold>>",
}
AGGREGATION = {
    "seq-mean-token-mean": r"\frac{1}{ROWS \cdot <<row_tokens>>}",
    "token-mean": r"\frac{1}{<<num_tokens>>}",
    "dr_grpo": r"\frac{1}{ROWS \cdot <<max_completion_length>>}",
    "seq-mean-token-sum": r"\frac{1}{ROWS}",
    "token-sum": "1",
    "sum-over-width": r"\frac{1}{<<row_width>>}",
    "micro-token-mean": r"\frac{1}{<<num_tokens|N_{\mathrm{micro}}>>}",
    "micro-seq-mean-token-mean": r"\frac{1}{<<num_rows|B_{\mathrm{micro}}>> \cdot <<row_tokens>>}",
    "length-over-cells": r"\frac{<<row_tokens>>}{ROWS \cdot <<num_columns>>}",
}
