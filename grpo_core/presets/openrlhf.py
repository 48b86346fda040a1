"""OpenRLHF's PolicyLoss, read from openrlhf/models/loss.py of 0.11.2."""

from .preset import Row, presets_of

NO_KL = {"reward_kl": "none", "reward_kl_coef": 0.0}
K3 = NO_KL | {"beta": 0.04, "kl_output_bound": 10.0, "kl_aggregation": "token-mean"}

PRESETS = presets_of(
    "openrlhf", "OpenRLHF", "0.11.2", "openrlhf/models/loss.py and trainer/ppo_utils/experience_maker.py, OpenRLHF 0.11.2",
    {"beta": 0.0, "aggregation": "token-mean", "kl_aggregation": "token-mean", "entropy_aggregation": "token-mean",
     "advantage_eps": 1e-9, "log_ratio_bound": 20.0, "reward_kl": "after", "reward_kl_coef": 0.01},
    (
        Row("", "the defaults with group_norm: .01 · k1 in each token's reward, token mean",
            quirk="The KL enters the reward after the group was normalised, so the advantage differs from token to token. "
            "A group of one gives NaN there, 0 here."),
        Row("no-kl", "group_norm without KL", NO_KL),
        Row("dapo-script", "the dapo script: k3 .001 in the loss, clip .2 and .27", K3 | {"beta": 1e-3, "clip_high": 0.27}),
        Row("kl", "k3 .04 in the loss", K3, "The KL is always a token mean, whatever the policy part is."),
        Row("kl-unbiased", "k3 .04 in the loss with unbiased_gradient", K3 | {"kl_gradient": "weighted-straight-through"},
            "The value of k3, the gradient min(ratio, 10) · (log p - log ref)."),
        Row("dual-clip", "dual_clip 3", NO_KL | {"surrogate": "dual-clip", "dual_clip": 3.0}),
        Row("seq-mean", "token_level_loss False", NO_KL | {"aggregation": "seq-mean-token-mean"}),
        Row("gspo", "policy_loss_type gspo, clip 3e-4 and 4e-4",
            NO_KL | {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "seq-mean-token-mean"},
            "Forces the mean per sample."),
        Row("rloo", "rloo without KL", NO_KL | {"advantage_mean": "leave-one-out", "advantage_std": "none"}),
        Row("reinforce-baseline", "reinforce_baseline: minus the group's mean, whitened with the biased variance",
            {"advantage_std": "none", "advantage_whiten": "biased"}),
        Row("is-mask", "is_correction_level token, mode mask, threshold .5 to 5",
            NO_KL | {"correction": "token", "correction_bound": "drop", "correction_low": 0.5, "correction_high": 5.0}),
    ),
)  # fmt: skip
