"""One batch through the loss functions of other trainers, as they returned it: advantages, loss and gradient of each.

data/golden.json: 12 rows of 1 to 6 tokens in 3 groups, one with equal rewards; ratios from 0.196 to 15.3, so that every
branch is taken. The numbers were made by the trainers' own code (TRL 1.16.0, verl 0.9.1, OpenRLHF 0.11.2, Liger 0.8.5 and the
2026 sources of ROLL, slime, AReaL, NeMo-RL and tinker-cookbook) in fp32.
"""

import json
from pathlib import Path

import pytest
import torch

from grpo_core import LossConfig, group_advantages, policy_loss

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text(encoding="utf-8"))
TOKEN, ROW, CONSTANT = ({"aggregation": name} for name in ("token-mean", "seq-mean-token-mean", "dr_grpo"))
GSPO = {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
DUAL = {"surrogate": "dual-clip", "dual_clip": 3.0}

# name -> settings; `mean`, `std`, `eps` and `reward` (a function of the reward) belong to the advantages, the rest to the loss
TRL = {
    "trl/default(dapo)": TOKEN,
    "trl/grpo": ROW,
    "trl/bnpo": TOKEN,
    "trl/dr_grpo(scale none)": CONSTANT | {"std": "none"},
    "trl/dapo beta.04 use_bias_correction_kl=False": TOKEN | {"beta": 0.04},
    "trl/dapo clip-higher .28": TOKEN | {"clip_high": 0.28},
    "trl/delta 2.0": TOKEN | {"surrogate": "dual-clip", "dual_clip": 2.0},
    "trl/gspo": ROW | GSPO,
    "trl/scale batch": TOKEN | {"std": "batch"},
    "liger/default(dapo beta.04)": TOKEN | {"beta": 0.04},
    "liger/dapo beta0": TOKEN,
}
VERL = {
    "verl/grpo default(token-mean, dual c=3)": TOKEN | DUAL,
    "verl/token-mean kl .04 low_var_kl": TOKEN | DUAL | {"beta": 0.04},
    "verl/grpo example kl_loss .001 low_var_kl": TOKEN | DUAL | {"beta": 0.001},
    "verl/seq-mean-token-mean": ROW | DUAL,
    "verl/seq-mean-token-sum-norm": CONSTANT | DUAL,
    "verl/Dr.GRPO": CONSTANT | DUAL | {"std": "none"},
    "verl/no dual clip (c=1e9)": TOKEN,
    "verl/gspo token-mean": TOKEN | GSPO,
    "verl/gspo seq-mean-token-mean": ROW | GSPO,
}
ROLL = {
    "roll/default(seq-mean-token-mean)": ROW,
    "roll/token-mean": TOKEN,
    "roll/seq-mean-token-sum": {"aggregation": "seq-mean-token-sum"},
    "roll/dual_clip_loss=True (c=1+2eps=1.4)": ROW | {"surrogate": "dual-clip", "dual_clip": 1.4},
    "roll/kl_loss_coef .04 k3": ROW | {"beta": 0.04},
    "roll/seq importance (gspo)": ROW | GSPO,
    "roll/entropy .01": ROW | {"entropy_coef": 0.01},
}
OTHERS = {
    "openrlhf/group_norm no KL": TOKEN | {"eps": 1e-9},
    "openrlhf/dapo script: k3 loss 1e-3, .2/.27": TOKEN | {"eps": 1e-9, "beta": 1e-3, "clip_high": 0.27},
    "openrlhf/k3 loss .04": TOKEN | {"eps": 1e-9, "beta": 0.04},
    "openrlhf/dual_clip 3": TOKEN | DUAL | {"eps": 1e-9},
    "openrlhf/seq-mean-token-mean": ROW | {"eps": 1e-9},
    "openrlhf/gspo": ROW | GSPO | {"eps": 1e-9},
    "slime/default (per-sample mean)": ROW,
    "slime/script clip-higher .28": ROW | {"clip_high": 0.28},
    "slime/--calculate-per-token-loss": TOKEN,
    "slime/eps_clip_c 3": ROW | DUAL,
    "areal/token-mean group-norm eps.2": TOKEN | {"eps": 1e-5, "reward": lambda r: (r - 0.5) * 10},
    "nemo/group-mean adv, no KL": TOKEN,
    "nemo/dual c=3": TOKEN | DUAL,
    "tinker-semantics/importance_sampling (sum)": {
        "aggregation": "token-sum", "surrogate": "none", "std": "none", "old": "rollout"},
}  # fmt: skip
SETTINGS = {
    **{name: {"eps": 1e-4} | s for name, s in TRL.items()},
    **{name: {"eps": 1e-6} | s for table in (VERL, ROLL, OTHERS) for name, s in table.items()},
}


def ours(settings):
    """(advantages, terms, gradient) of the golden batch."""
    settings = {"mean": "group", "std": "unbiased", "reward": float, "old": "old", "beta": 0.0} | settings
    given = {name: torch.tensor(values) for name, values in GOLDEN["inputs"].items()}
    mean, std, eps, reward, old = (settings.pop(name) for name in ("mean", "std", "eps", "reward", "old"))
    rewards = tuple((reward(value),) for value in given["rewards"].tolist())
    advantages = group_advantages(rewards, (1.0,), given["group"], mean, std, eps).advantages
    config = LossConfig(**settings, max_completion_length=given["mask"].shape[1])
    leaf = given["logp"].requires_grad_()
    terms = policy_loss(leaf, given[old], given["ref"], advantages, given["mask"].bool(), given["entropy"], config)
    return advantages, terms, torch.autograd.grad(terms.loss, leaf)[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_advantages_loss_and_gradient_are_that_trainers(name):
    theirs = GOLDEN["presets"][name]
    advantages, terms, grad = ours(SETTINGS[name])
    expected = torch.tensor(theirs["grad"])
    torch.testing.assert_close(advantages, torch.tensor(theirs["adv"]), rtol=1e-6, atol=1e-6)
    assert float((grad - expected).abs().max()) <= 1e-6 * float(expected.abs().max())
    size = float((terms.token_weight * terms.token_loss).abs().sum().detach())
    assert float(terms.loss.detach()) == pytest.approx(theirs["loss"], abs=1e-6 * size)


def test_nemos_leave_one_out_advantages():
    theirs = GOLDEN["presets"]["nemo/default(LOO, k3 .01)"]["adv"]
    advantages, _, _ = ours(TOKEN | {"mean": "leave-one-out", "std": "leave-one-out", "eps": 1e-6})
    torch.testing.assert_close(advantages, torch.tensor(theirs), rtol=1e-6, atol=1e-6)


def test_the_share_of_clipped_tokens_is_trls():
    # 10 of 49 trained tokens
    _, terms, _ = ours(TRL["trl/default(dapo)"] | {"eps": 1e-4})
    trained = torch.tensor(GOLDEN["inputs"]["mask"]).bool()
    share = float(terms.is_clipped[trained].float().mean())
    assert share == pytest.approx(GOLDEN["presets"]["trl/grpo"]["clip_ratio/region_mean"], abs=1e-6)
