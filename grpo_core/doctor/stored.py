"""Checks on what two stored log-prob fields tell of each other, logits or not: the kept tokens, the precision.

Log-probs in nats.
"""

import torch
from torch import Tensor

from .candidates import Sampling
from .finding import Evidence, Finding
from .hypotheses import explain_logprobs
from .lineage import same_weights

SHOWN_ROWS = 3
ONE_SIGN = 0.98  # share of tokens on one side that makes a bias
FEWEST = 8  # tokens; fewer are on one side by chance


def truncated_support_bias(evidence: Evidence) -> list[Finding]:
    """With top-p, top-k or min-p, sampler and trainer take their log-probs over the same tokens: the ratio has no one sign."""
    batch, sampling = evidence.batch, Sampling.of(evidence.batch)
    trainer = batch.old_logprobs if batch.old_logprobs is not None else batch.policy_logprobs
    name = "old_logprobs" if batch.old_logprobs is not None else "policy_logprobs"
    sampler = batch.sampler_logprobs
    if not sampling.truncates or sampler is None or trainer is None or not same_weights(batch, name, "sampler_logprobs"):
        return []
    named = {answer.field: answer.cause for answer in explain_logprobs(batch, evidence.policy) if answer.is_wrong}
    if named.get("sampler_logprobs", "kept tokens only") != "kept tokens only":
        return []
    mask = batch.trained_mask() & trainer.isfinite() & sampler.isfinite()
    ratio = (trainer - sampler)[mask]
    if len(ratio) < FEWEST or not _only_the_kept_mass(ratio, sampling):
        return []
    shown = range(min(len(mask), SHOWN_ROWS))
    other = "policy_logprobs" if batch.policy_logprobs is not None else name
    stored = getattr(batch, other)
    expected: dict = {"mean_log_ratio": 0.0}
    found: dict = {"mean_log_ratio": float(ratio.mean()), "share_negative": float((ratio < 0).float().mean())}
    for row in shown:
        expected |= {f"{other}[{row}]": sampler[row][mask[row]].tolist(), f"sequence_ratio[{row}]": 1.0}
        found[f"{other}[{row}]"] = stored[row][mask[row]].tolist()
        found[f"sequence_ratio[{row}]"] = float((trainer - sampler)[row][mask[row]].sum().exp())
    return [
        Finding(
            check="truncated_support_bias", severity="warning", quantity="sampler_logprobs", expected=expected, found=found,
            message=f"{found['share_negative']:.0%} of the log-ratios to the sampler are negative, on average "
            f"{found['mean_log_ratio']:.4g} ({_settings(sampling)}): the engine renormalised over the tokens it kept, and each "
            "ratio is the probability that was kept.",
            fix="Score both sides over the same set of tokens.",
        )
    ]  # fmt: skip


def _only_the_kept_mass(ratio: Tensor, sampling: Sampling) -> bool:
    """All on one side, clearly off 0, and no further than the mass that the settings leave."""
    noise = 1e-3
    bound = torch.tensor(sampling.top_p).log() - 0.05 if not sampling.top_k and not sampling.min_p else -torch.inf
    return bool(
        (ratio <= noise).float().mean() >= ONE_SIGN and (ratio < 0).float().mean() >= ONE_SIGN / 2
        and ratio.mean() < -0.01 and (ratio >= bound).float().mean() >= ONE_SIGN
    )  # fmt: skip


def _settings(sampling: Sampling) -> str:
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    return ", ".join(f"{name} {getattr(sampling, name):g}" for name, value in off.items() if getattr(sampling, name) != value)


def logprob_dtype_mix(evidence: Evidence) -> list[Finding]:
    """The fields of one pair are kept in one precision."""
    batch, findings = evidence.batch, []
    for name in ("old_logprobs", "ref_logprobs", "sampler_logprobs"):
        values, policy = getattr(batch, name), batch.policy_logprobs
        if values is None or policy is None:
            continue
        mask = batch.trained_mask() & values.isfinite() & policy.isfinite()
        short = _shorter(values[mask].float(), policy[mask].float())
        if short:
            findings.append(_mixed(evidence, name, mask, short))
    return findings


def _shorter(values: Tensor, policy: Tensor) -> str | None:
    """The short dtype whose rounding alone tells the two apart: all values have it, the policy's do not."""
    if len(values) < FEWEST:
        return None
    for dtype, relative in ((torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-9)):
        exact = [float((part.to(dtype).float() == part).float().mean()) for part in (values, policy)]
        if exact[0] == 1 and exact[1] < 0.5 and bool(((values - policy).abs() <= relative * policy.abs() + 1e-6).all()):
            return str(dtype).removeprefix("torch.")
    return None


def _mixed(evidence: Evidence, name: str, mask: Tensor, dtype: str) -> Finding:
    batch = evidence.batch
    values, policy = getattr(batch, name), batch.policy_logprobs
    assert policy is not None
    answers = explain_logprobs(batch, evidence.policy)
    right = next((answer.right for answer in answers if answer.field == name and answer.source in ("model", "logits")), policy)
    short = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    gap = (values - policy).abs()[mask]
    rows = [row for row in range(len(mask)) if mask[row].any()][:SHOWN_ROWS]
    return Finding(
        check="logprob_dtype_mix", severity="info" if name == "sampler_logprobs" else "warning", quantity=name,
        message=f"All {len(gap)} {name} are exact {short} numbers, the policy's are not; they differ by up to {gap.max():.4g} "
        "nats: one path rounds its log-probs, the other does not.",
        fix="Take log_softmax of float32 logits on both paths, and keep the result in float32.",
        expected={f"{name}[{row}]": right[row][mask[row]].tolist() for row in rows}
        | {"max_abs_log_ratio": 0.0, f"share_exact_in_{short}": 0.0},
        found={f"{name}[{row}]": values[row][mask[row]].tolist() for row in rows}
        | {"max_abs_log_ratio": float(gap.max()), f"share_exact_in_{short}": 1.0},
    )  # fmt: skip
