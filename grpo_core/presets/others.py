"""slime, AReaL, NeMo-RL, prime-rl, SkyRL and tinker-cookbook, read from their sources of May to August 2026."""

from .preset import Row, presets_of

GSPO = {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
DUAL = {"surrogate": "dual-clip", "dual_clip": 3.0}

SLIME = presets_of(
    "slime", "slime", "2026-08", "slime/backends/megatron_utils/loss.py, slime 624b824",
    {"beta": 0.0, "aggregation": "seq-mean-token-mean", "advantage_eps": 1e-6},
    (
        Row("", "the defaults: mean per sample, then over samples"),
        Row("clip-higher", "eps_clip_high .28, as in the scripts", {"clip_high": 0.28}),
        Row("per-token", "--calculate-per-token-loss", {"aggregation": "token-mean"},
            "A row without a trained token counts as one token in slime's denominator, as none here."),
        Row("dual-clip", "eps_clip_c 3", DUAL),
        Row("cispo", "estimator cispo with 1.0 and 4.0", {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0}),
        Row("kl-unbiased", "--use-kl-loss low_var_kl .04 with --use-unbiased-kl",
            {"beta": 0.04, "kl_output_bound": 10.0, "kl_gradient": "times-ratio"}),
        Row("opsm", "--use-opsm: rows with A < 0 that moved from the old policy by more than 1e-4 a token are dropped",
            {"gates": ("on-policy-rows",), "off_policy_threshold": 1e-4}),
        Row("tis", "--use-tis: old/sampler per token, truncated to [0, 2]", {"correction": "token", "correction_high": 2.0}),
    ),
)  # fmt: skip

AREAL = presets_of(
    "areal", "AReaL", "2026-07", "areal/utils/functional and areal/utils/data.py, AReaL 4aef98d",
    {"beta": 0.0, "aggregation": "token-mean", "advantage_eps": 1e-5, "reward_shift": -0.5, "reward_scale": 10.0,
     "reward_clip": 20.0},
    (
        Row("", "group norm, clip .2, token mean",
            quirk="Rewards are shifted and scaled first, (r - .5) · 10: after the normalisation that leaves no trace."),
        Row("gsm8k", "the gsm8k yaml: advantages normalised once more over all tokens, clip .4",
            {"advantage_whiten": "std", "clip_low": 0.4, "clip_high": 0.4},
            "Its rejection sampling drops rows and is not part of this row."),
        Row("decoupled", "use_decoupled_loss: ratio against the proximal (old) policy, weighted by old/sampler",
            {"correction": "token"}),
        Row("gspo", "importance_sampling_level sequence, clip 3e-4 and 4e-4", GSPO, "Keeps the token mean."),
    ),
)  # fmt: skip

NEMO = presets_of(
    "nemo", "NeMo-RL", "2026-08", "nemo_rl/algorithms/loss/loss_functions.py, NeMo-RL 7ea279a",
    {"beta": 0.01, "kl_gradient": "score", "kl_input_bound": 20.0, "kl_output_bound": 10.0, "aggregation": "token-mean",
     "advantage_mean": "leave-one-out", "advantage_std": "leave-one-out", "advantage_eps": 1e-6},
    (
        Row("", "grpo_math_1B: mean and std of the other completions, k3 .01",
            quirk="Mean and std leave the row itself out: a lone success among equals has a std of 0 and is not divided, "
            "and advantages reach 6 where others have 1.5."),
        Row("group-mean", "baseline and std of the whole group, no KL",
            {"advantage_mean": "group", "advantage_std": "unbiased", "beta": 0.0}),
        Row("dual-clip", "ratio_clip_c 3, baseline of the whole group, no KL",
            DUAL | {"advantage_mean": "group", "advantage_std": "unbiased", "beta": 0.0}),
        Row("on-policy-kl", "use_on_policy_kl_approximation: k3 · policy/sampler", {"kl_gradient": "times-sampler-ratio"}),
    ),
)  # fmt: skip

PRIME = presets_of(
    "prime-rl", "prime-rl", "2026-08", "src/prime_rl/trainer/rl/loss.py, prime-rl 559b447",
    {"advantage_std": "none", "ratio_against": "sampler", "surrogate": "dppo-ratio", "kl_against": "sampler",
     "kl_estimator": "k2", "beta": 2e-3, "aggregation": "token-mean"},
    (
        Row("", "the defaults: reward minus mean, ratio against the sampler, tokens dropped where the probability moved by .2",
            quirk="There is no old policy and no reference: both roles are the sampler's. Its 1e-3 · (log p - sampler)^2 is "
            "k2 with the coefficient 2e-3. Groups with equal rewards are filtered out before."),
    ),
)  # fmt: skip

SKYRL = presets_of(
    "skyrl", "SkyRL", "2026-07", "skyrl_train/utils/ppo_utils.py, SkyRL a956457",
    {"beta": 1e-3, "kl_output_bound": 10.0, "kl_aggregation": "micro-seq-mean-token-mean",
     "entropy_aggregation": "micro-token-mean", "aggregation": "token-mean", "advantage_eps": 1e-6,
     "advantage_alone": "reward", "log_ratio_bound": 20.0},
    (
        Row("", "the defaults: policy part as token mean, k3 .001 as sequence mean",
            quirk="Policy and KL weigh tokens differently, and the KL depends on the micro-batches."),
        Row("dual-clip", "policy_loss_type dual_clip with 3", DUAL),
    ),
)  # fmt: skip

TINKER = presets_of(
    "tinker", "tinker-cookbook", "2026-08", "tinker_cookbook/rl/data_processing.py, tinker-cookbook 9dfcc3a",
    {"advantage_std": "none", "beta": 0.0, "ratio_against": "sampler", "surrogate": "none", "aggregation": "token-sum"},
    (
        Row("", "importance_sampling: -policy/sampler · A, summed",
            quirk="A sum, not a mean: the learning rate carries the size."),
    ),
)  # fmt: skip

PRESETS = SLIME + AREAL + NEMO + PRIME + SKYRL + TINKER
