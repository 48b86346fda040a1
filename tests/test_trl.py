"""TRL 1.16's GRPOTrainer as a peer: same model, ids and rewards, same advantages, loss and gradient on the weights."""

from dataclasses import replace

import pytest
import torch
from peers import require

from grpo_core import LossConfig, load_policy, policy_loss, score_tokens, to_batch
from grpo_core.step import advantages_of, rewards_after_edits

LOSS_TYPES = {  # TRL's name -> ours
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "dr_grpo": "dr_grpo",
}
ALLOWED = 20  # tokens a completion may have: more than any here has, as in dr_grpo's constant
SCALES = {"group": "unbiased", "batch": "batch", "none": "none"}  # scale_rewards -> advantage_std


@pytest.fixture(scope="module")
def make_trainer(model_folder, rollout, recipe, tmp_path_factory):
    require("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rewards = [row[0] for row in rewards_after_edits(rollout, recipe)]
    rows = len(rewards)

    def typed_in(completions, **_):
        return rewards

    def make(**settings):
        args = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to=[],
            per_device_train_batch_size=rows, num_generations=recipe.group_size, gradient_checkpointing=False,
            max_completion_length=ALLOWED, temperature=recipe.temperature,
            use_bias_correction_kl=False, disable_dropout=True, **settings,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": list(recipe.prompts)})
        trainer = GRPOTrainer(model=str(model_folder), reward_funcs=typed_in, args=args, train_dataset=data)
        trainer.model.double().train()
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return make


def generated(rollout):
    """What TRL's sampler would have returned, had it sampled our rollout."""
    prompts = [ids[mask].tolist() for ids, mask in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)]
    answers = [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True)]
    return prompts, answers, None, list(rollout.completions), None, {}, None, None


def trl_inputs(trainer, rollout, recipe):
    """TRL's own path from completions to the inputs of its loss: padding, masks, rewards, advantages."""
    trainer._generate = lambda prompts: generated(rollout)
    asked = [prompt for prompt in recipe.prompts for _ in range(recipe.group_size)]
    return trainer._generate_and_score_completions([{"prompt": prompt} for prompt in asked])


def our_advantages(rollout, recipe):
    """One per row; no KL in the reward, so log-probs do not matter."""
    batch = to_batch(rollout, "prompt_completion")
    nothing = torch.zeros(batch.trained_mask().shape)
    return advantages_of(rollout, batch, nothing, nothing, recipe)[0].advantages


def drifted(logprobs, size, seed):
    """Log-probs of another policy, some `size` nats away."""
    noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(logprobs != 0, logprobs + size * noise, 0.0)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_trl_has_the_same_loss_and_the_same_gradient_on_the_weights(
    make_trainer, model_folder, rollout, recipe, loss_type, beta
):
    scale = "none" if loss_type == "dr_grpo" else "group"
    trainer = make_trainer(loss_type=loss_type, beta=beta, scale_rewards=scale)
    inputs = trl_inputs(trainer, rollout, recipe)
    batch, policy = to_batch(rollout, "prompt_completion"), load_policy(str(model_folder))
    policy.model.double()
    assert torch.equal(inputs["prompt_ids"], batch.prompt_ids)
    assert torch.equal(inputs["completion_ids"], batch.completion_ids)
    assert torch.equal(inputs["completion_mask"].bool(), batch.completion_mask)

    scored = score_tokens(policy, batch, recipe.temperature)
    old, ref = drifted(scored.logprobs.detach(), 0.3, 5), drifted(scored.logprobs.detach(), 0.5, 6)
    inputs |= {"old_per_token_logps": old, "ref_per_token_logps": ref}
    theirs = trainer.compute_loss(trainer.model, inputs)
    theirs.backward()

    ours = replace(recipe, aggregation=LOSS_TYPES[loss_type], beta=beta, advantage_std=SCALES[scale])
    advantages = our_advantages(rollout, ours)
    config = replace(ours, max_completion_length=ALLOWED).loss_config()
    terms = policy_loss(scored.logprobs, old, ref, advantages, batch.trained_mask(), scored.entropy, config)
    terms.loss.backward()
    assert terms.is_clipped.any() and not terms.is_clipped[batch.trained_mask()].all()
    assert float(theirs.detach()) == pytest.approx(float(terms.loss.detach()), rel=1e-6, abs=1e-7)
    their_grads = {name: p.grad for name, p in trainer.model.named_parameters()}
    largest = max(float(grad.abs().max()) for grad in their_grads.values())
    for name, p in policy.model.named_parameters():
        gap = float((p.grad - their_grads[name]).abs().max())
        # TRL's head makes logits and their gradients in fp32, whatever the model is in: 1.5e-6 apart at most on two processors
        assert gap <= 2e-6 * largest, f"{name}: {gap / largest:.3g} of the largest entry"


@pytest.mark.parametrize(("scale", "std"), SCALES.items())
def test_trl_has_the_same_advantages(make_trainer, rollout, recipe, scale, std):
    inputs = trl_inputs(make_trainer(scale_rewards=scale, beta=0.0), rollout, recipe)
    ours = our_advantages(rollout, replace(recipe, advantage_std=std))
    torch.testing.assert_close(inputs["advantages"], ours, rtol=1e-6, atol=1e-6)


def test_trl_computes_the_same_reference_log_probs(make_trainer, policy, rollout, recipe):
    inputs = trl_inputs(make_trainer(beta=0.04), rollout, recipe)
    ours = score_tokens(policy, to_batch(rollout, "prompt_completion"), recipe.temperature).logprobs
    mask = rollout.completion_mask
    torch.testing.assert_close(inputs["ref_per_token_logps"][mask], ours[mask].detach(), rtol=1e-5, atol=1e-5)


def test_the_peers_defaults_are_known():
    require("trl")
    from trl import GRPOConfig

    known = {"beta": 0.0, "loss_type": "dapo", "epsilon": 0.2, "scale_rewards": "group", "temperature": 1.0}
    known |= {"use_bias_correction_kl": True, "num_iterations": 1, "num_generations": 8}
    fields = GRPOConfig.__dataclass_fields__
    assert {name: fields[name].default for name in known} == known
    assert (LossConfig().clip_low, LossConfig().clip_high) == (0.2, 0.2)
