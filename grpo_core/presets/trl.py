"""TRL's GRPOTrainer, read from trl/trainer/grpo_trainer.py of 1.16.0, and as it was in February 2025."""

from .preset import Row, presets_of

SEQUENCE_MEAN, TOKEN_MEAN = {"aggregation": "seq-mean-token-mean"}, {"aggregation": "token-mean"}
SEQUENCE_RATIO = {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
VESPO = {"surrogate": "vespo"}

TRL = presets_of(
    "trl", "TRL", "1.16.0", "trl/trainer/grpo_trainer.py, TRL 1.16.0",
    {"beta": 0.0, "aggregation": "token-mean", "advantage_eps": 1e-4, "kl_gradient": "times-ratio",
     "entropy_aggregation": "micro-token-mean"},
    (
        Row("", "the defaults: loss_type dapo, one mean over all tokens of the step, no KL"),
        Row("grpo", "loss_type grpo: mean over each completion, then over completions", SEQUENCE_MEAN),
        Row("bnpo", "loss_type bnpo: mean over the tokens of each micro-batch", {"aggregation": "micro-token-mean"},
            "Depends on how the batch is split: each micro-batch divides by its own tokens."),
        Row("dr_grpo", "loss_type dr_grpo, scale_rewards none: divided by rows · max_completion_length",
            {"aggregation": "dr_grpo", "advantage_std": "none"}),
        Row("kl", "beta .04 with the importance-corrected KL, the default in 1.16", {"beta": 0.04},
            "The logged `kl` is ratio · k3, about twice the plain k3 on an off-policy batch."),
        Row("kl-plain", "beta .04, use_bias_correction_kl False: the default of 1.10", {"beta": 0.04, "kl_gradient": "plain"}),
        Row("clip-higher", "epsilon_high .28", {"clip_high": 0.28}),
        Row("delta", "two-sided clipping with delta 2", {"surrogate": "two-sided", "dual_clip": 2.0},
            "The same number as dual clip with c = delta whenever delta >= 1 + epsilon_high."),
        Row("cispo", "loss_type cispo, epsilon_high 5", {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0},
            "epsilon_high is the bound itself here, not 1 + epsilon_high."),
        Row("cispo-unset", "loss_type cispo with epsilon_high left at its default",
            {"surrogate": "cispo", "clip_low": 1.0, "clip_high": -0.8},
            "A trap: the default .2 is the bound itself, so every weight is capped at .2."),
        Row("sapo", "loss_type sapo, temperatures 1 and 1.05", {"surrogate": "sapo"} | SEQUENCE_MEAN),
        Row("vespo", "loss_type vespo, k 2 and 3, lambda 3 and 2", VESPO,
            "A row far off its old policy weighs next to nothing: w^k · exp(-lambda · w) of the whole row's ratio."),
        Row("gspo", "importance_sampling_level sequence, loss_type grpo, clip 3e-4 and 4e-4", SEQUENCE_RATIO | SEQUENCE_MEAN),
        Row("luspo", "loss_type luspo at sequence level, clip 2e-3 and 2.5e-3",
            {"ratio": "sequence", "clip_low": 2e-3, "clip_high": 2.5e-3, "aggregation": "seq-mean-token-sum"},
            "Up to 1.10, and in Liger, padding was summed as well."),
        Row("mask-truncated", "mask_truncated_completions: what was cut off is not trained", {"mask_truncated": True},
            "Cut-off rows still count in their group's mean and std."),
        Row("scale-batch", "scale_rewards batch: one std for the whole batch", {"advantage_std": "batch"}),
        Row("top-entropy", "top_entropy_quantile .2: only the fifth of tokens with the highest entropy",
            {"gates": ("top-entropy",)},
            "The denominator still counts every token."),
        Row("off-policy-mask", "off_policy_mask_threshold .3, without vLLM",
            {"gates": ("on-policy-rows",), "off_policy_threshold": 0.3},
            "Only rows with a negative advantage are dropped."),
        Row("vllm", "with vLLM: rows whose old/sampler ratio is above 3 are dropped, the others weighted by it",
            {"correction": "sequence", "correction_bound": "drop", "correction_high": 3.0},
            "On by default with vLLM (vllm_importance_sampling_correction)."),
    ),
)  # fmt: skip

EARLY = presets_of(
    "trl-2025-02", "TRL", "2025-02", "trl/trainer/grpo_trainer.py, February 2025",
    {"surrogate": "none", "beta": 0.04, "aggregation": "seq-mean-token-mean", "advantage_eps": 1e-4},
    (
        Row("", "TRL as it was at first: ratio · A with no clip, beta · k3, mean of sequence means",
            quirk="One update per sample, so the ratio is exp(logp - logp.detach()): 1, with the gradient of log p."),
    ),
)  # fmt: skip

PRESETS = TRL + EARLY
