"""The papers' losses as the papers state them."""

from .preset import Row, presets_of

NO_KL = {"beta": 0.0}
PRESETS = presets_of(
    "paper", "Papers", "", "", {},
    (
        Row("grpo", "GRPO: group mean and std, clip .2, k3 against the reference inside the loss, mean of sequence means",
            {}, "The paper divides by the bare std; the 1e-4 beside it is TRL's. It does not say which std: unbiased here.",
            "DeepSeekMath, arXiv 2402.03300, eq. 3 and 4"),
        Row("dr_grpo", "Dr. GRPO: no std, and a constant in the place of the completion's length",
            NO_KL | {"advantage_std": "none", "aggregation": "dr_grpo"},
            "The sum is divided by rows · max_completion_length, so the loss shrinks when the limit is raised.",
            "Understanding R1-Zero-Like Training, arXiv 2503.20783"),
        Row("dapo", "DAPO: clip-higher .28, every token weighs the same, no KL",
            NO_KL | {"clip_high": 0.28, "aggregation": "token-mean"},
            "Two of its four ideas are outside one loss: the overlong penalty changes the rewards, dynamic sampling replaces "
            "groups in which all rewards are equal.", "DAPO, arXiv 2503.14476"),
        Row("gspo", "GSPO: the row's mean log-ratio as one ratio, clipped at 3e-4 and 4e-4",
            NO_KL | {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
            "The bounds are a thousand times tighter than GRPO's: a mean over tokens moves that much less than one token.",
            "GSPO, arXiv 2507.18071, eq. 5 and 7"),
        Row("cispo", "CISPO: the clipped ratio is a constant weight on the log-prob, every token keeps a gradient",
            NO_KL | {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token-mean"},
            "The paper tunes the upper bound and leaves the lower one open; it gives no number, 5 is what trainers use.",
            "MiniMax-M1, arXiv 2506.13585, eq. 4"),
        Row("gmpo", "GMPO: the geometric mean of the row's ratios, each clipped to exp(±.4)",
            NO_KL | {"surrogate": "geometric-mean", "clip_low": 0.4, "clip_high": 0.4},
            "The clip acts on log-ratios, token by token, on the side that the advantage forbids.", "GMPO, arXiv 2507.20673"),
        Row("rloo", "RLOO: the mean of the others as baseline, no std, plain policy gradient per sequence, KL in the reward",
            NO_KL | {"advantage_mean": "leave-one-out", "advantage_std": "none", "surrogate": "log-prob",
                     "aggregation": "seq-mean-token-sum", "reward_kl": "before", "reward_kl_coef": 0.05},
            "A completion is one action: its tokens' log-probs are summed, not averaged.",
            "Back to Basics, arXiv 2402.14740"),
        Row("reinforce++", "REINFORCE++: no group; k1 in each token's reward, advantages whitened over all tokens of the batch",
            NO_KL | {"advantage_mean": "none", "advantage_std": "none", "reward_kl": "after", "reward_kl_coef": 0.01,
                     "advantage_whiten": "biased", "aggregation": "token-mean"},
            "The baseline is the batch's mean, so an easy prompt counts as a success for every completion.",
            "REINFORCE++, arXiv 2501.03262"),
    ),
)  # fmt: skip
