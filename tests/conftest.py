"""Fixtures: a tiny random model in a temporary folder, one rollout of it, one traced step."""

# ruff: noqa: E402 - the environment and the checks are set before what reads them is imported
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: each has others beside it

import shapes

shapes.install()  # before anything imports grpo_core

import pytest
import torch
from builders import QUESTIONS, save_random_model

from grpo_core import Evidence, Recipe, grpo_step, load_policy, sample
from grpo_core.explain import logprobs_after, update_effect, vocabulary_row

torch.set_num_threads(1)  # the tensors are tiny: a second thread costs more than it brings

# Rewards are typed in: a random model is never right. Group 0 has two winners of four, group 1 four different rewards.
EDITS = ((0, 0, 1.0), (1, 0, 0.0), (2, 0, 0.0), (3, 0, 1.0), (4, 0, 0.5), (5, 0, 0.0), (6, 0, 1.0), (7, 0, 0.25))


def pytest_collection_modifyitems(items):
    """Files that start a browser or processes have few tests and take long: they come first, so that no worker is left with
    one of them while the others are done (`--no-loadscope-reorder` keeps this order). Then those with the most tests."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = sorted(files.values(), key=lambda tests: (not starts_processes(tests[0].module), -len(tests)))
    items[:] = [item for tests in order for item in tests]


def starts_processes(module):
    """Whether the module imports one of these, or something out of it."""
    origins = {getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()}
    return not origins.isdisjoint(("browser", "processes", "subprocess"))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def fp64():
    """Everything that the module makes is in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def browser():
    from browser import chromium  # here, so that tests of the core alone do not load the app

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def server():
    """A running app for all files of this worker. What a visitor does stays in their session."""
    from browser import require_chromium, running_app

    require_chromium()
    with running_app() as url:
        yield url


@pytest.fixture(scope="module")
def address(browser, server):
    """The app's address; the same model is loaded here, to compare with what it shows."""
    from lessons import view

    view.start("tiny")
    return server


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return save_random_model(tmp_path_factory.mktemp("random-llama"))


@pytest.fixture(scope="session")
def policy(model_folder):
    """The loaded weights. Steps train a clone of it."""
    return load_policy(str(model_folder))


@pytest.fixture(scope="session")
def recipe(model_folder):
    return Recipe(
        model=str(model_folder), prompts=("What is 4 + 5?", "2 - 1?"), group_size=4, max_completion_length=12,
        reward_functions=("correct",), reward_weights=(1.0,), edited_rewards=EDITS, seed=17, learning_rate=2e-3,
    )  # fmt: skip


@pytest.fixture(scope="session")
def rollout(policy, recipe):
    """Eight rows behind prompts of different lengths; some stopped by themselves, some were cut."""
    rollout = sample(policy, recipe.prompts, recipe)
    assert set(rollout.finish_reasons) == {"stop", "length"} and not rollout.prompt_mask.all()
    return rollout


@pytest.fixture(scope="session")
def trained(policy):
    """The copy that the traced step trains; after `trace` it holds the weights of after the step."""
    return policy.clone()


@pytest.fixture(scope="session")
def trace(policy, trained, rollout, recipe):
    """Two updates with the loaded weights as the reference."""
    return grpo_step(trained, policy, rollout, recipe)


@pytest.fixture(scope="session")
def token(trace):
    """[row, column] of a trained token in the middle of a completion, with an advantage."""
    lengths = trace.batch.trained_mask().sum(1)
    row = int(torch.where(trace.advantages.advantages != 0, lengths, 0).argmax())
    return row, int(lengths[row]) // 2


@pytest.fixture(scope="session")
def evidence(policy, trained, trace, token):
    """All that a check may ask for, about the first update."""
    after = logprobs_after(trained, trace)
    return Evidence.of_trace(
        trace, policy=policy, token=token, row=vocabulary_row(policy, trace, 0, *token),
        effect=update_effect(trace, 0, after),
    )  # fmt: skip


@pytest.fixture
def jsonl(tmp_path):
    """`builders.QUESTIONS` as JSON lines, an empty line among them."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)).replace("\n", "\n\n", 1), encoding="utf-8")
    return path
