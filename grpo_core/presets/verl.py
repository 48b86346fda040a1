"""verl's actor loss, read from verl/trainer/ppo/core_algos.py of 0.9.1."""

from .preset import Row, presets_of

KL = {"beta": 0.04, "kl_output_bound": 10.0}
# verl bounds this log-ratio at 10 from above only; below -10 the ratio is nothing either way
SEQUENCE_RATIO = {
    "ratio": "sequence-token",
    "surrogate": "min-clip",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "log_ratio_bound": 10.0,
}
SUM_NORM = {"aggregation": "dr_grpo"}
SEQUENCE_MEAN = {"aggregation": "seq-mean-token-mean"}

PRESETS = presets_of(
    "verl", "verl", "0.9.1", "verl/trainer/ppo/core_algos.py, verl 0.9.1",
    {"beta": 0.0, "surrogate": "dual-clip", "dual_clip": 3.0, "aggregation": "token-mean", "advantage_eps": 1e-6,
     "advantage_alone": "reward", "log_ratio_bound": 20.0},
    (
        Row("", "the defaults with adv_estimator grpo: token mean and dual clip 3",
            quirk="Dual clip is always on (clip_ratio_c 3): the largest reason why verl's loss differs from TRL's. "
            "A group of one gets its raw reward as advantage."),
        Row("kl-example", "the example scripts: kl_loss_coef .001 with low_var_kl", KL | {"beta": 0.001}),
        Row("kl", "kl_loss_coef .04 with low_var_kl", KL, "The estimate is clamped to ±10."),
        Row("kl-straight-through", "kl_loss_coef .04 with k3+: the value of k3, the gradient of k2",
            KL | {"kl_gradient": "straight-through"}, "The loss is the same as with low_var_kl, the gradient is not."),
        Row("kl-in-reward", "use_kl_in_reward: .001 · k1 is taken off the reward",
            {"reward_kl": "before", "reward_kl_coef": 0.001},
            "The KL goes into the reward before the group is normalised, so it moves mean and std."),
        Row("seq-mean-token-mean", "loss_agg_mode seq-mean-token-mean", SEQUENCE_MEAN),
        Row("seq-mean-token-sum-norm", "loss_agg_mode seq-mean-token-sum-norm: divided by rows · response width", SUM_NORM),
        Row("no-dual-clip", "clip_ratio_c set to 1e9", {"surrogate": "min-clip"},
            "There is no switch: a huge constant is the only way to be rid of it."),
        Row("gspo", "loss_mode gspo with its default token mean", SEQUENCE_RATIO,
            "The paper averages over sequences; verl's default averages over tokens."),
        Row("gspo-seq-mean", "loss_mode gspo, seq-mean-token-mean", SEQUENCE_RATIO | SEQUENCE_MEAN),
        Row("cispo", "loss_mode cispo with clip_ratio .2", {"surrogate": "cispo"},
            "The bounds are 1 ± .2; TRL's bound is 5, ROLL's 1 ± .1."),
        Row("sapo", "loss_mode sapo", {"surrogate": "sapo"} | SEQUENCE_MEAN, "Ignores loss_agg_mode: always sequence means."),
        Row("dppo_tv", "loss_mode dppo_tv: dropped where the probability moved by more than .2", {"surrogate": "dppo-tv"},
            "clip_ratio is a difference of probabilities here, and clip_ratio_c 3 truncates the ratio."),
        Row("dppo_kl", "loss_mode dppo_kl: dropped where the two-way KL is above .2", {"surrogate": "dppo-kl"}),
        Row("geo_mean", "loss_mode geo_mean with clip_ratio .4",
            {"surrogate": "geometric-mean", "clip_low": 0.4, "clip_high": 0.4, "log_ratio_bound": 80.0} | SEQUENCE_MEAN,
            "Ignores loss_agg_mode: a plain mean over rows, empty ones included."),
        Row("clip_cov", "loss_mode clip_cov: a few tokens with a high covariance lose their gradient, drawn with seed 0",
            {"surrogate": "clip-cov", "log_ratio_bound": 80.0}, "Random: two runs differ unless the seed is fixed."),
        Row("kl_cov", "loss_mode kl_cov, ppo_kl_coef .1", {"surrogate": "kl-cov", "cov_coef": 0.1, "log_ratio_bound": 80.0}),
        Row("gpg", "loss_mode gpg: -A · log p", {"surrogate": "log-prob"}, "No ratio at all: old log-probs are not read."),
        Row("dr_grpo", "norm_adv_by_std_in_grpo False and seq-mean-token-sum-norm", SUM_NORM | {"advantage_std": "none"},
            "Dual clip stays on."),
        Row("rloo", "adv_estimator rloo", {"advantage_mean": "leave-one-out", "advantage_std": "none"}),
        Row("reinforce++", "adv_estimator reinforce_plus_plus: whitened over all tokens, no group",
            {"advantage_mean": "none", "advantage_std": "none", "advantage_whiten": "unbiased"}),
        Row("reinforce++-baseline", "adv_estimator reinforce_plus_plus_baseline: minus the group's mean, then whitened",
            {"advantage_std": "none", "advantage_whiten": "unbiased"}),
        Row("tis", "rollout_is token with threshold 2: old/sampler as a weight, truncated",
            {"correction": "token", "correction_high": 2.0}),
        Row("icepop", "rollout_is token with bounds .5 to 2: tokens outside them are dropped",
            {"correction": "token", "correction_bound": "drop", "correction_low": 0.5, "correction_high": 2.0}),
        Row("sequence-is", "rollout_is sequence with threshold 2", {"correction": "sequence", "correction_high": 2.0}),
    ),
)  # fmt: skip
