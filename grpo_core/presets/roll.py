"""ROLL's actor loss, read from roll/pipeline/rlvr/actor_worker.py (August 2026, 0.3.0), and as the seed document showed it."""

from .preset import Row, presets_of

SOURCE = "roll/pipeline/rlvr/actor_worker.py and roll/utils/functionals.py, ROLL 0.3.0 (August 2026)"
BASE = {"beta": 0.0, "aggregation": "seq-mean-token-mean", "advantage_eps": 1e-6, "count_empty_rows": False}
K3 = {"beta": 0.04, "kl_output_bound": 10.0}
DUAL = {"surrogate": "dual-clip", "dual_clip": 1.4}

ROLL = presets_of(
    "roll", "ROLL", "0.3.0", SOURCE, BASE,
    (
        Row("", "the defaults with adv_estimator grpo: sequence mean of token means, no dual clip, no KL",
            quirk="Its ppo_ratio_clipfrac counts ratios outside the band whatever the sign of A, and can exceed 1."),
        Row("token-mean", "loss_agg_mode token-mean", {"aggregation": "token-mean"},
            "The mask is not applied to the loss here: it relies on advantages that are 0 on masked rows."),
        Row("seq-mean-token-sum", "loss_agg_mode seq-mean-token-sum", {"aggregation": "seq-mean-token-sum"}),
        Row("seq-mean-token-sum-norm", "loss_agg_mode seq-mean-token-sum-norm", {"aggregation": "sum-over-width"},
            "Divided by prompt + completion width - 1 and not by rows: a loss of another size than verl's of the same name."),
        Row("dual-clip", "dual_clip_loss True", DUAL, "The constant is 1 + 2 · pg_clip = 1.4, not the paper's 3."),
        Row("clip-range", "use_pg_clip_range with .2 and .28", {"clip_high": 0.28}),
        Row("kl", "use_kl_loss, kl_loss_coef .04", K3, "Always k3, clamped to ±10, whatever kl_penalty says."),
        Row("entropy", "entropy_loss_coef .01", {"entropy_coef": 0.01}),
        Row("gspo", "importance_sampling seq, clip 3e-4 and 4e-4", {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}),
        Row("segment", "agentic ratio_type segment: one ratio for each turn", {"ratio": "segment"}),
        Row("example-yaml", "qwen2.5-7B-rlvr example: raw rewards whitened over all tokens, clipped to ±2, dual clip 1.4",
            DUAL | {"advantage_mean": "none", "advantage_std": "none", "advantage_whiten": "unbiased", "advantage_clip": 2.0},
            "No group is involved. Its difficulty and length masks drop whole rows and are not part of this row."),
        Row("tis", "pg_variant tis: min(ratio, 1) as a constant weight", {"surrogate": "tis"}),
        Row("topr", "pg_variant topr: tis for rows without a reward, full weight for the others", {"surrogate": "topr"},
            "The sign of the raw reward decides, not that of the advantage."),
        Row("cispo", "pg_variant cispo with bounds 1 ± .1", {"surrogate": "cispo", "clip_low": 0.1, "clip_high": 0.1}),
        Row("kimi15", "pg_variant kimi15, tau .1", {"surrogate": "quadratic", "quadratic_coef": 0.1}),
        Row("vanilla", "pg_variant vanilla: -A · log p", {"surrogate": "log-prob"}),
        Row("kl-in-reward", "add_token_level_kl, init_kl_coef .2 with k1", {"reward_kl": "after", "reward_kl_coef": 0.2}),
        Row("train-infer", "train_infer_correction: old/sampler per token, truncated to [0, 1.2]",
            {"correction": "token", "correction_high": 1.2}),
    ),
)  # fmt: skip

SEED = presets_of(
    "roll-seed", "ROLL", "2025", "loss_func of an earlier ROLL, as the second founding document explains it", BASE,
    (
        Row("", "ratio, range clip, -min, sequence mean of token means",
            quirk="Its clip metric averages over padding as well."),
        Row("clip-range", "separate lower and upper clip", {"clip_high": 0.28}),
        Row("dual-clip", "dual clip with c = 1 + 2 · .2", DUAL),
        Row("token-mean", "agg_loss token-mean", {"aggregation": "token-mean"}),
        Row("seq-mean-token-sum", "agg_loss seq-mean-token-sum", {"aggregation": "seq-mean-token-sum"}),
        Row("seq-mean-token-sum-norm", "agg_loss seq-mean-token-sum-norm", {"aggregation": "sum-over-width"}),
        Row("kl", "kl_loss_coef .04 with k3", K3),
        Row("entropy", "entropy bonus .01", {"entropy_coef": 0.01}),
    ),
)  # fmt: skip

PRESETS = ROLL + SEED
