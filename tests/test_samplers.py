"""Samplers that are not this package's own: the same rollout in every respect, or a refusal in one line."""

import pytest
import torch
from peers import require

from grpo_core import load_policy
from grpo_core.engine import LOCAL
from grpo_core.loading import add_adapters
from grpo_core.logprobs import score_tokens
from grpo_core.rollout import draws_of, encode_prompts, sample, to_batch
from grpo_core.samplers import SAMPLERS
from grpo_core.samplers.merged import save_weights
from grpo_core.samplers.sampler import GAP, OtherEngine, seed_of
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

SMALL = {
    "steps": 2, "prompts_per_step": 2, "group_size": 4, "max_completion_length": 12, "learning_rate": 1e-2, "threads": 1,
    "scoring": "padded",
}  # fmt: skip


@pytest.fixture(scope="module")
def policy():
    return load_policy()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": "sglang"}, "sampler: found 'sglang', allowed: own, continuous_batching, vllm"),
        ({"sampler": "vllm"}, "vllm_url: found '', needed where sampler is 'vllm'"),
        ({"vllm_url": "localhost:8000"}, "vllm_url: found 'localhost:8000', allowed: http://HOST:PORT of a vLLM server"),
        ({"vllm_timeout": 0.0}, "vllm_timeout: found 0.0, allowed: above 0 seconds"),
        ({"sampler": "vllm", "vllm_url": "http://a", "top_k": 5}, "top_k: found 5 with sampler 'vllm', allowed: 0"),
        ({"sampler": "continuous_batching", "top_p": 0.9}, "top_p: found 0.9 with sampler 'continuous_batching', allowed: 1"),
        ({"sampler": "continuous_batching", "autocast": True}, "sampler: found 'continuous_batching' with autocast True"),
        ({"sampler": "continuous_batching", "sharding": "shard"}, "sampler: found 'continuous_batching' with sharding shard"),
    ],
)
def test_what_no_sampler_can_do_is_refused(settings, said):
    with pytest.raises(ValueError) as refused:
        TrainConfig(**settings)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_the_own_sampler_is_the_default_and_changes_nothing(policy):
    config = TrainConfig(**SMALL, prompts=("1 + 1", "What is 12 + 7?"))
    assert config.sampler == "own"
    left, right = (
        sample(policy, config.prompts, config),
        sample(policy, config.prompts, config, draw=SAMPLERS["own"](config, LOCAL).generate),
    )
    assert torch.equal(left.completion_ids, right.completion_ids) and torch.equal(left.kept_mass, right.kept_mass)


# ---- transformers' continuous batching -------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_continuous_batching_gives_the_policys_own_logprobs(policy, temperature):
    config = TrainConfig(**SMALL, sampler="continuous_batching", temperature=temperature, prompts=("1 + 1", "What is 12 + 7?"))
    sampler, state = SAMPLERS["continuous_batching"](config, LOCAL), torch.random.get_rng_state()
    found = [sample(policy, config.prompts, config, draw=sampler.generate) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)  # the run's own numbers go on as before
    assert found[0].completions == found[1].completions and len(set(found[0].completions)) > 1
    batch = to_batch(found[0], "prompt_completion")
    with torch.no_grad():
        scored = score_tokens(policy, batch, temperature).logprobs
    assert torch.allclose(scored, found[0].sampler_logprobs, atol=1e-4)
    assert torch.equal(found[0].kept_mass, found[0].completion_mask.float())
    for ids, mask, reason in zip(found[0].completion_ids, found[0].completion_mask, found[0].finish_reasons, strict=True):
        row = ids[mask].tolist()
        assert (row[-1] in policy.eos_ids) == (reason == "stop") and (reason == "stop" or len(row) == 12)


def test_continuous_batching_draws_what_the_policy_says(policy):
    """First tokens of 512 rows: their shares are the probabilities, within 5 standard deviations."""
    config = TrainConfig(**SMALL | {"max_completion_length": 1}, sampler="continuous_batching")
    ids, mask = encode_prompts(policy, ("What is 12 + 7?",), config)
    drawn, _, logprobs, _ = SAMPLERS["continuous_batching"](config, LOCAL).generate(
        policy, ids, mask, config, draws_of(config, 512)
    )
    for token in drawn.unique():
        share = float((drawn == token).double().mean())
        p = float(logprobs[drawn == token][0].exp())
        assert abs(share - p) < 5 * (p * (1 - p) / 512) ** 0.5 + 1 / 512


@pytest.mark.parametrize("more", [{}, {"lora_rank": 2}], ids=["plain", "adapters"])
def test_a_run_that_samples_by_continuous_batching_follows_its_weights(more):
    if more:
        require("peft")
    records = list(Trainer(TrainConfig(**SMALL, **more, sampler="continuous_batching")).run())
    assert [record.step for record in records] == [0, 1]
    assert all(record.metrics["sampler_gap"] < 1e-4 and record.metrics["applied"] == 1 for record in records)


# ---- the proof -------------------------------------------------------------------------------------------------------------
class OfOtherWeights(OtherEngine):
    """The own sampler on another policy's weights: what a server does that was not given new ones."""

    other = None

    def rows(self, policy, prompts, recipe, draws):
        ids, mask = torch.tensor(prompts), torch.ones(1, len(prompts[0]), dtype=torch.bool)
        drawn, kept, logprobs, _ = SAMPLERS["own"](self.config, LOCAL).generate(self.other or policy, ids, mask, recipe, draws)
        return [(row[m].tolist(), says[m].tolist()) for row, m, says in zip(drawn, kept, logprobs, strict=True)]


def test_other_weights_are_found_before_the_first_step(policy):
    sampler = OfOtherWeights(TrainConfig(**SMALL), LOCAL)
    sampler.prove(policy, 0)
    sampler.other = policy.clone()
    with torch.no_grad():
        for values in sampler.other.model.parameters():
            values.mul_(0.9)
    with pytest.raises(ValueError, match=f"nats away from those of 'tiny', allowed: {GAP}; does it draw from that model"):
        sampler.prove(policy, 0)


# ---- weights for another engine --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", [0, 4])
def test_saved_weights_are_those_of_the_policy_with_its_adapters(tmp_path, rank):
    trained = load_policy()
    if rank:
        require("peft")
        trained = add_adapters(trained, rank, 32.0, ("all-linear",), 0)
        with torch.no_grad():
            for name, values in trained.model.named_parameters():
                if "lora_B" in name:
                    values.normal_(std=0.05)
    for version in (3, 4):
        folder = save_weights(trained, trained.model.state_dict(), tmp_path, version)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name] == ["weights-00000004"]
    (folder / "tokenizer.json").touch()
    trained.tokenizer.save_pretrained(folder)
    ids = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        logits = [p.project(p.hidden(ids, ids >= 0)[0]) for p in (trained, load_policy(str(folder)), load_policy())]
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    assert torch.allclose(logits[0], logits[2], atol=1e-4) == (rank == 0)


def test_a_seed_follows_from_the_rows_own_numbers():
    draws = draws_of(TrainConfig(**SMALL), 8)
    seeds = {seed_of(draws[row : row + 2]) for row in range(0, 8, 2)}
    assert len(seeds) == 4 and max(seeds) < 2**48 and seed_of(draws[2:4].clone()) in seeds
