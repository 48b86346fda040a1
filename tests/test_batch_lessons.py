"""A batch file in the lessons: its own numbers, and what it lacks said and never made up."""

import json
import os
from dataclasses import replace
from pathlib import Path

import file_batches
import pytest
import torch
from batch_views import check_numbers, lesson, offered
from displayed import numbers_in

from grpo_core import grpo_step, load_batch
from grpo_core.batch_step import trace_of_batch
from grpo_core.doctor import CHECKS, Evidence, run_checks
from grpo_core.trace_batch import batch_of_trace
from lessons import BY_SLUG, LESSONS, absent, link, view
from lessons.compare import handlers as compare
from lessons.lesson import Selection
from lessons.train import handlers as train

HERE = Path(__file__).parent / "data" / "cases"
FOLDERS = [HERE, *map(Path, filter(None, os.environ.get("GRPO_CASES", "").split(":")))]
CASES = [path for folder in FOLDERS for path in sorted(folder.glob("*.json")) if path.stem != "expected"]


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_lesson_shows_a_case_as_it_is(path):
    batch = load_batch(path)
    recipe = offered(batch, path.name)
    own = {slug: check_numbers(batch, recipe, slug) for slug in BY_SLUG}
    assert all(own[slug] for slug in ("prompt", "rewards", "advantages", "masks", "ratio")), own


@pytest.mark.parametrize("name", ["clean-01-jetty", "clean-03-lagoon", "clean-04-lotus", "clean-05-mahogany", "clean-06-maple"])
def test_the_loss_of_a_clean_case_is_what_its_trainer_printed(name):
    batch = load_batch(next(path for path in CASES if path.stem == name))
    (update,) = trace_of_batch(batch).updates
    assert float(update.terms.loss) == pytest.approx(batch.reported["loss"], abs=1e-6)


@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
@pytest.mark.parametrize("lacking", ["", *file_batches.OPTIONAL])
def test_what_is_missing_is_said_and_nothing_is_made_up(layout, lacking):
    batch = file_batches.whole(layout)
    batch = file_batches.without(batch, lacking) if lacking else batch
    recipe = offered(batch)
    for slug in BY_SLUG:
        check_numbers(batch, recipe, slug)
        context, values = lesson(recipe, slug)
        named = {name for name, *_ in numbers_in(values)}
        assert lacking not in named or lacking in ("policy_logprobs", "entropy", "advantages")  # these follow from the rest
        if absent.lacking(context, BY_SLUG[slug].needs):
            assert "Not in this batch" in json.dumps(values["picture"]["panels"]) and values["side"]["question"] is None
    told = json.dumps([lesson(recipe, slug)[1]["picture"] for slug in BY_SLUG])
    assert not lacking or lacking in told or lacking in ("finish_reasons", "entropy")
    assert "weights" in json.dumps(lesson(recipe, "update")[1]["picture"]["panels"])


@pytest.mark.parametrize("name", list(file_batches.odd()))
def test_odd_batches_are_shown_as_what_they_are(name):
    batch = file_batches.odd()[name]
    recipe = offered(batch)
    for slug in BY_SLUG:
        for row, pos in ((0, -1), (0, 4)):
            check_numbers(batch, recipe, slug, row=row, pos=pos)


def test_a_place_that_is_not_trained_can_be_looked_at_and_is_said():
    batch = file_batches.tool_masked()
    recipe = offered(batch)
    context, values = lesson(recipe, "ratio", row=0, pos=4)
    assert values["picture"]["selected"] == {"row": 0, "pos": 4} and not context.is_trained
    assert values["picture"]["batch"]["untrained"] and values["journey"]["token"]["pos"] == 4
    assert not [step for step in values["journey"]["steps"] if step["label"] == "ratio"][0]["value"]
    assert not lesson(recipe, "ratio", row=0, pos=3)[1]["picture"]["batch"]["untrained"]


def test_stored_advantages_stand_beside_the_recomputed_and_are_the_ones_that_count():
    batch = file_batches.whole()
    context, values = lesson(offered(batch), "advantages")
    named = {name for name, *_ in numbers_in(values["picture"]["panels"])}
    assert {"advantages", "advantages@group/unbiased"} <= named
    assert torch.equal(context.trace.token_advantages[:, 0], batch.advantages)
    assert "is not the one" in json.dumps(values["picture"]["panels"])
    right = replace(batch, advantages=context.conventions["group", "unbiased"].advantages)
    assert "is not the one" not in json.dumps(lesson(offered(right), "advantages")[1]["picture"]["panels"])


# ---- a step of ours, as a file --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["prompt_completion", "sequence"])
def test_a_step_that_was_saved_is_the_same_step(policy, rollout, recipe, layout):
    recipe = replace(recipe, layout=layout, updates=1, beta=0.1, clip_low=0.1)
    trace = grpo_step(policy.clone(), policy, rollout, recipe)
    batch = batch_of_trace(trace, 0, policy)
    read = trace_of_batch(batch)
    assert read.recipe.convention() == recipe.convention() and read.rollout is None and not read.needs
    for name in ("loss", "ratio", "kl", "token_weight", "token_loss", "is_clipped"):
        assert torch.equal(getattr(read.updates[0].terms, name), getattr(trace.updates[0].terms, name)), name
    assert torch.equal(read.updates[0].logprob_grad, trace.updates[0].logprob_grad)
    assert read.updates[0].grad_norms == {} and not read.updates[0].applied


def test_the_model_that_it_belongs_to_brings_what_the_file_lacks(policy, trace):
    batch = replace(batch_of_trace(trace, 0, policy), policy_logprobs=None, entropy=None)
    scored = trace_of_batch(batch, policy)
    torch.testing.assert_close(scored.updates[0].terms.policy_logprobs, trace.updates[0].terms.policy_logprobs)
    assert any("scored now" in said for said in scored.batch.derived)
    recipe = offered(batch, policy=policy)
    context, values = lesson(recipe, "logits")
    assert context.vocabulary.probs.shape[0] == policy.vocab_size
    check_numbers(batch, recipe, "logits")
    with pytest.raises(ValueError, match="^model: found a vocabulary of"):
        trace_of_batch(file_batches.odd()["strange ids"], policy)


# ---- badges and pages -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", CASES[::5], ids=lambda path: path.stem)
def test_the_badges_are_the_doctors_checks_on_the_file(path):
    batch = load_batch(path)
    recipe = offered(batch)
    for each in LESSONS:
        _, values = lesson(recipe, each.slug)
        for shown in values["side"]["checks"]:
            check = CHECKS[shown["name"]]
            if {"trace", "row", "token", "effect"}.isdisjoint(check.needs):
                (right,) = run_checks(Evidence(batch=batch), [check])
                assert shown["status"] == right.status, (each.slug, shown["name"])


def test_the_other_pages_take_the_batch_along():
    recipe = offered(file_batches.whole())
    query = link.query(recipe, Selection())
    wanted, *_ = compare.load(query)
    assert not compare.finish(wanted)
    _, notices, nav, page = compare.show("", [], wanted)
    assert not notices and recipe.model in json.dumps(nav) and "a batch.json" in json.dumps(page)
    wanted, nav, page, side = train.load(query, "", "")
    assert wanted.recipe == recipe and recipe.model in json.dumps(nav)


def test_a_large_batch_comes_through_windows():
    rows, width = 160, 700
    random = torch.Generator().manual_seed(1)
    small = file_batches.whole()
    mask = torch.arange(width) < torch.randint(20, width, (rows, 1), generator=random)
    policy = -torch.rand(rows, width, generator=random)
    batch = replace(
        file_batches.without(small, "logits", "entropy", "rewards"), prompt_ids=torch.ones(rows, 300, dtype=torch.long),
        prompt_mask=torch.ones(rows, 300, dtype=torch.bool), 
        completion_ids=torch.randint(0, 12, (rows, width), generator=random),
        completion_mask=mask, group_ids=torch.arange(rows) // 8, advantages=torch.randn(rows, generator=random),
        policy_logprobs=policy, old_logprobs=policy + 0.1, ref_logprobs=policy, sampler_logprobs=policy,
        finish_reasons=("stop",) * rows, rewards=torch.rand(rows, 1, generator=random), meta={"beta": 0.1},
    )  # fmt: skip
    recipe = offered(batch)
    assert recipe.group_size == 8 and recipe.max_completion_length == width
    for slug in BY_SLUG:
        check_numbers(batch, recipe, slug, row=100, pos=310)
