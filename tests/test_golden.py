"""One batch through the loss functions of eleven trainers, as they returned it: advantages, loss and gradient of each.

data/golden.json: 12 rows of 1 to 6 tokens in 3 groups, one with equal rewards; ratios from 0.196 to 15.3, so that every
branch is taken. The numbers were made by the trainers' own code (TRL 1.16.0, verl 0.9.1, OpenRLHF 0.11.2, Liger 0.8.5 and the
2026 sources of ROLL, slime, AReaL, NeMo-RL, prime-rl, SkyRL and tinker-cookbook) in fp32.

GRPO_GOLDEN names other files of the same form, separated by `:`.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from grpo_core.compare import evaluate
from grpo_core.inputs import LossInputs
from grpo_core.presets import PRESETS, preset

DEFAULT = Path(__file__).parent / "data" / "golden.json"
FILES = [Path(part) for part in os.environ.get("GRPO_GOLDEN", str(DEFAULT)).split(":") if part]
ALL = [(path, name) for path in FILES for name in json.loads(path.read_text("utf-8"))["presets"]]

# the file's name of a setting -> ours
NAMES = {
    "trl/default(dapo)": "trl",
    "trl/grpo": "trl/grpo",
    "trl/bnpo": "trl/bnpo",
    "trl/dr_grpo(scale none)": "trl/dr_grpo",
    "trl/dapo beta.04 (bias-corrected KL, default)": "trl/kl",
    "trl/dapo beta.04 use_bias_correction_kl=False": "trl/kl-plain",
    "trl/dapo clip-higher .28": "trl/clip-higher",
    "trl/delta 2.0": "trl/delta",
    "trl/cispo 5": "trl/cispo",
    "trl/sapo": "trl/sapo",
    "trl/vespo": "trl/vespo",
    "trl/gspo": "trl/gspo",
    "trl/luspo": "trl/luspo",
    "trl/mask_truncated": "trl/mask-truncated",
    "trl/scale batch": "trl/scale-batch",
    "trl/top_entropy .2": "trl/top-entropy",
    "trl/opsm .3": "trl/off-policy-mask",
    "verl/grpo default(token-mean, dual c=3)": "verl",
    "verl/grpo example kl_loss .001 low_var_kl": "verl/kl-example",
    "verl/token-mean kl .04 low_var_kl": "verl/kl",
    "verl/token-mean kl .04 k3+": "verl/kl-straight-through",
    "verl/seq-mean-token-mean": "verl/seq-mean-token-mean",
    "verl/seq-mean-token-sum-norm": "verl/seq-mean-token-sum-norm",
    "verl/no dual clip (c=1e9)": "verl/no-dual-clip",
    "verl/gspo token-mean": "verl/gspo",
    "verl/gspo seq-mean-token-mean": "verl/gspo-seq-mean",
    "verl/cispo default .2/.2": "verl/cispo",
    "verl/sapo": "verl/sapo",
    "verl/dppo_tv": "verl/dppo_tv",
    "verl/dppo_kl": "verl/dppo_kl",
    "verl/geo_mean .4": "verl/geo_mean",
    "verl/kl_cov": "verl/kl_cov",
    "verl/gpg": "verl/gpg",
    "verl/Dr.GRPO": "verl/dr_grpo",
    "roll/default(seq-mean-token-mean)": "roll",
    "roll/token-mean": "roll/token-mean",
    "roll/seq-mean-token-sum": "roll/seq-mean-token-sum",
    "roll/seq-mean-token-sum-norm": "roll/seq-mean-token-sum-norm",
    "roll/dual_clip_loss=True (c=1+2eps=1.4)": "roll/dual-clip",
    "roll/kl_loss_coef .04 k3": "roll/kl",
    "roll/seq importance (gspo)": "roll/gspo",
    "roll/example yaml (reinforce+whiten+advclip2+dual)": "roll/example-yaml",
    "roll/entropy .01": "roll/entropy",
    "roll/pg_variant tis": "roll/tis",
    "roll/pg_variant topr": "roll/topr",
    "roll/pg_variant cispo": "roll/cispo",
    "roll/pg_variant kimi15": "roll/kimi15",
    "openrlhf/group_norm default (k1 in reward .01)": "openrlhf",
    "openrlhf/group_norm no KL": "openrlhf/no-kl",
    "openrlhf/dapo script: k3 loss 1e-3, .2/.27": "openrlhf/dapo-script",
    "openrlhf/k3 loss .04 unbiased_gradient": "openrlhf/kl-unbiased",
    "openrlhf/k3 loss .04": "openrlhf/kl",
    "openrlhf/dual_clip 3": "openrlhf/dual-clip",
    "openrlhf/seq-mean-token-mean": "openrlhf/seq-mean",
    "openrlhf/gspo": "openrlhf/gspo",
    "liger/default(dapo beta.04)": "liger",
    "liger/dapo beta0": "liger/no-kl",
    "liger/dapo beta.04 biascorr": "liger/kl-corrected",
    "liger/luspo token": "liger/luspo-token",
    "liger/vespo": "liger/vespo",
    "slime/default (per-sample mean)": "slime",
    "slime/script clip-higher .28": "slime/clip-higher",
    "slime/--calculate-per-token-loss": "slime/per-token",
    "slime/eps_clip_c 3": "slime/dual-clip",
    "slime/cispo 1.0/4.0": "slime/cispo",
    "areal/token-mean group-norm eps.2": "areal",
    "areal/gsm8k yaml adv+eps.4 (no RS)": "areal/gsm8k",
    "areal/gspo": "areal/gspo",
    "nemo/default(LOO, k3 .01)": "nemo",
    "nemo/group-mean adv, no KL": "nemo/group-mean",
    "nemo/dual c=3": "nemo/dual-clip",
    "prime-rl/default": "prime-rl",
    "skyrl/default(token_mean + seq-mean k3 .001)": "skyrl",
    "tinker-semantics/importance_sampling (sum)": "tinker",
}


def golden(path):
    return json.loads(Path(path).read_text("utf-8"))


def inputs_of(given, dtype=torch.float32):
    """The file's batch as what a loss needs. A row of full width that does not end in EOS (2) was cut off."""
    tensors = {name: torch.tensor(values) for name, values in given.items() if isinstance(values, list)}
    mask, completions = tensors["mask"].bool(), tensors["ids"][:, given["P"] :]
    last = completions.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
    policy, old, ref, sampler, entropy = (tensors[name].to(dtype) for name in ("logp", "old", "ref", "rollout", "entropy"))
    return LossInputs(
        mask=mask, policy_logprobs=policy, old_logprobs=old, ref_logprobs=ref, sampler_logprobs=sampler, entropy=entropy,
        rewards=tuple((float(value),) for value in given["rewards"]), group_ids=tensors["group"],
        truncated=mask.any(1) & (last != 2), width=given["P"] + given["T"] - 1, max_completion_length=given["T"],
    )  # fmt: skip


@pytest.mark.parametrize(("path", "name"), ALL, ids=[f"{path.stem}-{name}" for path, name in ALL])
def test_advantages_loss_and_gradient_are_that_trainers(path, name):
    data = golden(path)
    theirs, inputs = data["presets"][name], inputs_of(data["inputs"])
    ours = evaluate(inputs, preset(NAMES[name]).convention())
    expected = torch.tensor(theirs["grad"])
    gap = (ours.grad - torch.where(inputs.mask, expected, 0.0)).abs().max()
    assert float(gap) <= 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(ours.advantages[:, 0], torch.tensor(theirs["adv"]), rtol=1e-6, atol=1e-6)
    terms = ours.terms
    size = float((terms.token_weight * terms.token_loss).abs().sum())
    assert float(terms.loss) == pytest.approx(theirs["loss"], abs=1e-6 * size)


def test_every_setting_of_the_file_has_a_preset():
    assert set(golden(DEFAULT)["presets"]) == set(NAMES) and len(NAMES) == 74
    assert set(NAMES.values()) <= set(PRESETS)
