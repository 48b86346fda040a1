"""Every quantity that a lesson may show: its symbol, its axes, and which tensor of the step it is.

One table serves the formulas, the grids, the journey, the tensor cards and the browser test. Axes: B row, T scored token,
S place in the row, R reward function, V vocabulary, "" a scalar, "recipe" a setting. `name@variant` is the same quantity
under another convention (`token_weight@token-mean`, `advantages@group/biased`, `loss@before`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grpo_core import closed_forms, explain
from grpo_core.logprobs import labels, position_ids
from grpo_core.types import Batch

if TYPE_CHECKING:
    from .lesson import Context


@dataclass(frozen=True)
class Quantity:
    name: str
    symbol: str  # LaTeX
    axes: str
    get: Callable[["Context"], Any]


def told_positions(batch: Batch) -> Tensor:
    """The places that the model is told: a batch file's own, where it stores them."""
    return position_ids(batch.row_mask()) if batch.position_ids is None else batch.position_ids


def _terms(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.terms, name)


def _advantages(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.trace.advantages, name)


def _recipe(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.recipe, name)


def _element(field: str, index: int) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.recipe, field)[index]


def _advantage_workings(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.advantage_workings, name)


def _loss_workings(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.loss_workings, name)


def _vocabulary(name: str) -> Callable[["Context"], Any]:
    return lambda c: getattr(c.vocabulary, name)


_TABLE = (
    # ids and masks
    Quantity("input_ids", r"x_t", "BS", lambda c: c.trace.batch.row_ids()),
    Quantity("attention_mask", r"a_t", "BS", lambda c: c.trace.batch.row_mask()),
    Quantity("completion_mask", r"m_t", "BS", lambda c: c.trace.batch.row_completion_mask()),
    Quantity("position_ids", r"\mathrm{pos}_t", "BS", lambda c: told_positions(c.trace.batch)),
    Quantity("loss_mask", r"m_t", "BT", lambda c: c.trace.batch.trained_mask()),
    Quantity("labels", r"y_t", "BT", lambda c: labels(c.trace.batch)),
    # sampling and rewards
    Quantity("sampler_logprobs", r"\log \pi_{\mathrm{sampler}}", "BT", lambda c: c.trace.batch.sampler_logprobs),
    Quantity("sampler_probs", r"\pi_{\mathrm{sampler}}", "BT",
             lambda c: explain.probabilities(c.trace.batch.sampler_logprobs, c.trace)),
    Quantity("kept_mass", r"K_t", "BC", lambda c: c.trace.sampled().kept_mass),
    Quantity("rewards", r"r_i", "BR", _advantages("rewards")),
    Quantity("reward_weights", r"w", "R", _advantages("weights")),
    Quantity("reward", r"r_i", "B", _advantages("reward")),
    # advantages
    Quantity("baseline", r"b_i", "B", _advantages("baseline")),
    Quantity("scale", r"s_i", "B", _advantages("scale")),
    Quantity("group_mean", r"\bar r_g", "B", _advantages("group_mean")),
    Quantity("group_std", r"\sigma_g", "B", _advantages("group_std")),
    Quantity("advantages", r"A_i", "B", _advantages("advantages")),
    Quantity("token_advantages", r"A_t", "BT", lambda c: c.trace.token_advantages),
    Quantity("token_penalty", r"\kappa_t", "BT", _advantage_workings("token_penalty")),
    Quantity("penalty", r"\kappa_i", "B", _advantage_workings("penalty")),
    Quantity("penalty_to_come", r"\sum_{s \ge t} \kappa_s", "BT", _advantage_workings("penalty_to_come")),
    Quantity("group_rows", r"n_g", "B", _advantage_workings("group_rows")),
    Quantity("batch_mean", r"\bar r", "", _advantage_workings("batch_mean")),
    Quantity("spread_rows", r"n_g", "B", _advantage_workings("spread_rows")),
    Quantity("spread_squares", r"\sum_j (r_j - \bar r)^2", "B", _advantage_workings("spread_squares")),
    Quantity("whiten_mean", r"\mu", "", _advantage_workings("mean")),
    Quantity("whiten_variance", r"V", "", _advantage_workings("variance")),
    # the selected position's row of the vocabulary
    Quantity("logits", r"z_v", "V", _vocabulary("logits")),
    Quantity("scaled_logits", r"z_v / T", "V", _vocabulary("scaled_logits")),
    Quantity("logprobs", r"\log p_v", "V", _vocabulary("logprobs")),
    Quantity("probs", r"p_v", "V", _vocabulary("probs")),
    Quantity("logit_grad", r"\partial L / \partial z_v", "V", _vocabulary("logit_grad")),
    Quantity("rank", r"\mathrm{rank}", "", _vocabulary("rank")),
    # log-probs and what the loss makes of them
    Quantity("policy_logprobs", r"\log \pi_\theta", "BT", lambda c: c.policy_logprobs),
    Quantity("old_logprobs", r"\log \pi_{\mathrm{old}}", "BT", lambda c: c.trace.old_logprobs),
    Quantity("ref_logprobs", r"\log \pi_{\mathrm{ref}}", "BT", lambda c: c.trace.ref_logprobs),
    Quantity("log_ratio", r"\log \rho_t", "BT", _terms("log_ratio")),
    Quantity("span_sum", r"\sum_t x_t", "BT", _loss_workings("span_sum")),
    Quantity("span_tokens", r"n", "BT", _loss_workings("span_tokens")),
    Quantity("ratio", r"\rho_t", "BT", _terms("ratio")),
    Quantity("clipped_ratio", r"\operatorname{clip}(\rho_t)", "BT", _terms("clipped_ratio")),
    Quantity("surrogate", r"\rho_t A", "BT", _terms("surrogate")),
    Quantity("clipped_surrogate", r"\operatorname{clip}(\rho_t) A", "BT", _terms("clipped_surrogate")),
    Quantity("is_clipped", r"\mathrm{clipped}", "BT", _terms("is_clipped")),
    Quantity("row_log_ratio", r"\sum_t \log \rho_t", "BT", _loss_workings("row_log_ratio")),
    Quantity("row_ratio", r"w", "BT", _loss_workings("row_ratio")),
    Quantity("kept_sum", r"\sum_t z_t", "BT", _loss_workings("kept_sum")),
    Quantity("mean_advantage", r"\bar A", "", _loss_workings("mean_advantage")),
    Quantity("mean_logprob", r"\overline{\log \pi_\theta}", "", _loss_workings("mean_logprob")),
    Quantity("logprob_weight", r"\mathrm{sg}[\cdot]", "BT", lambda c: c.logprob_weights),
    Quantity("log_weight_sum", r"\sum_t \log v_t", "BT", _loss_workings("log_weight_sum")),
    Quantity("moved_from_old", r"\overline{\log \pi_{\mathrm{old}} - \log \pi_\theta}", "BT", _loss_workings("moved_from_old")),
    Quantity("moved_from_sampler", r"\overline{\log \pi_{\mathrm{sampler}} - \log \pi_\theta}", "BT",
             _loss_workings("moved_from_sampler")),
    Quantity("entropy_threshold", r"H_{\min}", "", _loss_workings("entropy_threshold")),
    Quantity("correction", r"c_t", "BT", _terms("correction")),
    Quantity("token_loss", r"\ell_t", "BT", _terms("token_loss")),
    Quantity("token_weight", r"w_t", "BT", _terms("token_weight")),
    Quantity("weighted_token_loss", r"w_t \ell_t", "BT", lambda c: explain.weighted_token_loss(c.trace, c.update_index)),
    Quantity("weighted_row_loss", r"\sum_t w_t \ell_t", "B", lambda c: explain.weighted_row_loss(c.trace, c.update_index)),
    Quantity("kl", r"\mathrm{kl}_t", "BT", _terms("kl")),
    Quantity("k1", r"k_1", "BT", lambda c: c.kl_estimates["k1"]),
    Quantity("k2", r"k_2", "BT", lambda c: c.kl_estimates["k2"]),
    Quantity("k3", r"k_3", "BT", lambda c: c.kl_estimates["k3"]),
    Quantity("abs", r"|x|", "BT", lambda c: c.kl_estimates["abs"]),
    Quantity("exact_kl", r"\mathrm{KL}(\pi_\theta \| \pi_{\mathrm{ref}})", "BT", lambda c: c.exact_kl),
    Quantity("kl_weight", r"w^{\mathrm{KL}}_t", "BT", _terms("kl_weight")),
    Quantity("entropy", r"H_t", "BT", _terms("entropy")),
    Quantity("entropy_weight", r"w^{H}_t", "BT", _terms("entropy_weight")),
    Quantity("policy_loss", r"L_\pi", "", _terms("policy_loss")),
    Quantity("kl_loss", r"L_{\mathrm{KL}}", "", _terms("kl_loss")),
    Quantity("entropy_loss", r"L_H", "", _terms("entropy_loss")),
    Quantity("loss", r"L", "", _terms("loss")),
    # gradient and update
    Quantity("logprob_grad", r"\partial L / \partial \log \pi_\theta", "BT", lambda c: c.update.logprob_grad),
    Quantity("policy_grad", r"\partial L_\pi / \partial \log \pi_\theta", "BT",
             lambda c: closed_forms.policy_logprob_grad(c.trace, c.update_index)),
    Quantity("kl_grad", r"\beta \, \partial L_{\mathrm{KL}} / \partial \log \pi_\theta", "BT",
             lambda c: closed_forms.kl_logprob_grad(c.trace, c.update_index)),
    Quantity("grad_norm", r"\lVert \nabla_\theta L \rVert", "", lambda c: c.update.grad_norm),
    Quantity("layer_norms", r"\lVert \nabla \rVert", "layer", lambda c: c.layer_norms),
    Quantity("logprobs_before", r"\log \pi_\theta", "BT", lambda c: c.effect.before),
    Quantity("logprobs_after", r"\log \pi_{\theta'}", "BT", lambda c: c.effect.after),
    Quantity("logprob_change", r"\Delta \log \pi", "BT", lambda c: c.effect.change),
    Quantity("row_change", r"\sum_t \Delta \log \pi", "B", lambda c: c.effect.row_change),
    # settings
    Quantity("temperature", r"T", "recipe", _recipe("temperature")),
    Quantity("advantage_eps", r"\epsilon", "recipe", _recipe("advantage_eps")),
    Quantity("clip_low", r"\varepsilon_{\mathrm{low}}", "recipe", _recipe("clip_low")),
    Quantity("clip_high", r"\varepsilon_{\mathrm{high}}", "recipe", _recipe("clip_high")),
    Quantity("dual_clip", r"c", "recipe", _recipe("dual_clip")),
    Quantity("beta", r"\beta", "recipe", _recipe("beta")),
    Quantity("entropy_coef", r"\alpha", "recipe", _recipe("entropy_coef")),
    Quantity("learning_rate", r"\eta", "recipe", _recipe("learning_rate")),
    Quantity("group_size", r"G", "recipe", _recipe("group_size")),
    Quantity("max_completion_length", r"C_{\max}", "recipe", _recipe("max_completion_length")),
    *(Quantity(name, symbol, "recipe", _recipe(name)) for name, symbol in (
        ("reward_shift", r"\delta"), ("reward_scale", r"\gamma"), ("reward_clip", r"r_{\max}"), ("advantage_clip", r"A_{\max}"),
        ("reward_kl_coef", r"\beta_r"), ("log_ratio_bound", r"x_{\max}"), ("kl_input_bound", r"x_{\max}"),
        ("kl_output_bound", r"k_{\max}"), ("correction_low", r"v_{\min}"), ("correction_high", r"v_{\max}"),
        ("off_policy_threshold", r"\tau"), ("cov_coef", r"\lambda"), ("quadratic_coef", r"\tau"),
    )),
    *(Quantity(name, symbol, "recipe", _element(field, index)) for name, symbol, field, index in (
        ("sapo_positive", r"\tau_{+}", "sapo_temperatures", 0), ("sapo_other", r"\tau_{-}", "sapo_temperatures", 1),
        ("vespo_k_positive", r"k_{+}", "vespo_shape", 0), ("vespo_rate_positive", r"\lambda_{+}", "vespo_shape", 1),
        ("vespo_k_other", r"k_{-}", "vespo_shape", 2), ("vespo_rate_other", r"\lambda_{-}", "vespo_shape", 3),
    )),
    Quantity("counted_rows", r"B_{>0}", "", lambda c: c.trace.batch.trained_mask().any(1).sum()),
    Quantity("num_columns", r"T", "", lambda c: c.trace.batch.trained_mask().shape[1]),
    Quantity("row_width", r"(P + C - 1)", "", lambda c: c.trace.batch.row_ids().shape[1] - 1),
    Quantity("num_rows", r"B", "", lambda c: c.trace.batch.row_ids().shape[0]),
    Quantity("num_tokens", r"N", "", lambda c: c.trace.batch.trained_mask().sum()),
    Quantity("row_tokens", r"|o_i|", "B", lambda c: c.trace.batch.trained_mask().sum(1)),
)  # fmt: skip
QUANTITIES = {quantity.name: quantity for quantity in _TABLE}

# name@variant -> the tensor under that variant; axes are the plain name's
VARIANTS: dict[str, Callable[["Context", str], Any]] = {
    "token_weight": lambda c, variant: c.aggregations[variant].token_weight,
    "policy_loss": lambda c, variant: c.aggregations[variant].policy_loss,
    "advantages": lambda c, variant: c.conventions[tuple(variant.split("/"))].advantages,
}


def tensor_of(context: "Context", name: str) -> Any:
    """The tensor (or number) behind a displayed name; made once per context."""
    if name not in context.made:
        context.made[name] = _make(context, name)
    return context.made[name]


def _make(context: "Context", name: str) -> Any:
    plain, _, variant = name.partition("@")
    if variant == "before":
        return QUANTITIES[plain].get(context.before)
    return VARIANTS[plain](context, variant) if variant else QUANTITIES[plain].get(context)


def element(context: "Context", name: str, row: int | None = None, pos: int | None = None, place: Any = None) -> Any:
    """One displayed number as a Python number. `place`: reward function, vocabulary id or layer name."""
    axes = QUANTITIES[name.partition("@")[0]].axes
    if axes == "V" and row is not None:  # any position's row, not only the selected token's
        return getattr(context.distribution_at(row, pos), name)[place].item()
    whole = tensor_of(context, name)
    if axes == "BT":
        picked = whole[row, context.column_of(pos)]
    elif axes == "BC":
        picked = whole[row, pos - context.rows.prompt_width]
    elif axes == "BS":
        picked = whole[row, pos]
    elif axes == "BR":
        picked = whole[row, place]
    elif axes == "B":
        picked = whole[row]
    elif axes in ("V", "R", "layer"):
        picked = whole[place]
    else:
        picked = whole
    return picked.item() if isinstance(picked, Tensor) else picked
