"""Liger-Kernel's chunked GRPO loss, read from liger_kernel/chunked_loss/grpo_loss.py of 0.8.5."""

from .preset import Row, presets_of

PRESETS = presets_of(
    "liger", "Liger-Kernel", "0.8.5", "liger_kernel/chunked_loss/grpo_loss.py, Liger-Kernel 0.8.5",
    {"beta": 0.04, "aggregation": "token-mean", "advantage_eps": 1e-4},
    (
        Row("", "the defaults: loss_type dapo, beta .04",
            quirk="The KL is on by default and not corrected: the same settings give another loss in TRL 1.16. Without "
            "num_items_in_batch the mean is taken over the micro-batch."),
        Row("no-kl", "loss_type dapo, beta 0", {"beta": 0.0}),
        Row("kl-corrected", "beta .04, use_bias_correction_kl", {"kl_gradient": "times-ratio"}),
        Row("grpo", "loss_type grpo, beta 0", {"beta": 0.0, "aggregation": "seq-mean-token-mean"}),
        Row("bnpo", "loss_type bnpo, beta 0", {"beta": 0.0, "aggregation": "micro-token-mean"},
            "Depends on how the batch is split."),
        Row("dr_grpo", "loss_type dr_grpo, beta 0", {"beta": 0.0, "aggregation": "dr_grpo"}),
        Row("cispo", "loss_type cispo, epsilon_high 5, beta 0",
            {"beta": 0.0, "surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0}),
        Row("sapo", "loss_type sapo, beta 0", {"beta": 0.0, "surrogate": "sapo", "aggregation": "seq-mean-token-mean"}),
        Row("luspo-token", "loss_type luspo at token level, beta 0",
            {"beta": 0.0, "aggregation": "length-over-cells", "count_padding": True},
            "Padding is summed as well: each padded slot adds a constant, A · row length / all cells."),
        Row("vespo", "loss_type vespo, beta 0", {"beta": 0.0, "surrogate": "vespo"}),
    ),
)  # fmt: skip
