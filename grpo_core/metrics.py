"""LossTerms -> named floats. The only place that names logged numbers; every mean is over trained tokens."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from .types import LossTerms


def summarize(terms: LossTerms, mask: Bool[Tensor, "B T"]) -> dict[str, float]:
    """The numbers that a trainer logs for one update; 0 where nothing is trained."""
    trained = int(mask.sum())

    def mean(values: Tensor) -> float:
        return float(torch.where(mask, values, 0).sum() / max(trained, 1))

    ratios = terms.ratio[mask]
    return {
        "loss": float(terms.loss),
        "policy_loss": float(terms.policy_loss),
        "kl_loss": float(terms.kl_loss),
        "entropy_loss": float(terms.entropy_loss),
        "kl": mean(terms.kl),
        "entropy": mean(terms.entropy),
        "clip_fraction": mean(terms.is_clipped.to(terms.ratio.dtype)),  # share of trained tokens without a gradient
        "ratio_mean": mean(terms.ratio),
        "ratio_min": float(ratios.min()) if trained else 0.0,
        "ratio_max": float(ratios.max()) if trained else 0.0,
        "num_tokens": float(trained),
    }


def layer_norms(grad_norms: Mapping[str, float]) -> dict[str, float]:
    """Gradient norms of single parameters -> of the model's blocks: root of the sum of squares, in the model's order."""
    blocks: dict[str, float] = {}
    for name, norm in grad_norms.items():
        block = _block(name)
        blocks[block] = math.hypot(blocks.get(block, 0.0), norm)
    return blocks


def _block(parameter: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` -> `layers.3`; what stands outside the layers keeps its own name."""
    parts = parameter.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[max(0, place - 1) : place + 1])
    named = [part for part in parts if part not in ("model", "weight", "bias", "transformer", "base_model")]
    return ".".join(named) or parameter
