"""A batch file under any convention, its links, and the store that keeps it."""

from dataclasses import replace

import file_batches
import pytest
from batch_views import lesson, offered
from displayed import numbers_in
from visitor import Visitor

from grpo_core import Recipe
from grpo_core.batch_step import BatchRecipe, recipe_of_batch, trace_of_batch
from lessons import BY_SLUG, handlers, link, view
from lessons.batches import Batches, is_batch, tensors_of
from lessons.lesson import Selection


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


# ---- conventions ------------------------------------------------------------------------------------------------------------
def test_what_meta_says_decides_then_the_preset_then_the_framework():
    batch = file_batches.whole()
    assert recipe_of_batch(batch).beta == 0.04 and recipe_of_batch(batch).preset == "paper/grpo"
    of_verl = replace(batch, meta=batch.meta | {"framework": "verl", "clip_high": 0.28})
    recipe = recipe_of_batch(of_verl)
    assert (recipe.preset, recipe.clip_high, recipe.surrogate) == ("verl", 0.28, "dual-clip")
    assert (
        recipe_of_batch(of_verl, "trl/gspo").ratio == "sequence-token"
        or recipe_of_batch(of_verl, "trl/gspo").ratio == "sequence"
    )
    assert recipe_of_batch(replace(batch, meta={"preset": "verl/gspo"})).preset == "verl/gspo"
    with pytest.raises(ValueError, match="^preset: found 'no/such'"):
        recipe_of_batch(batch, "no/such")


def test_a_guessed_convention_that_the_file_cannot_serve_is_dropped():
    bare = file_batches.without(file_batches.whole(), "ref_logprobs")
    assert recipe_of_batch(replace(bare, meta={"framework": "openrlhf/kl"})).beta == 0.0
    assert trace_of_batch(bare, preset="verl/kl-example").needs == ("ref_logprobs",)
    assert trace_of_batch(bare, preset="verl/kl-example").updates == ()


def test_another_convention_on_the_same_log_probs_stands_beside_the_files():
    visitor = Visitor().open(f"?lesson=clip&model={offered(file_batches.whole()).model}").run()
    assert isinstance(visitor.recipe, BatchRecipe) and not visitor.picture.get("running")
    before = view.context_of(visitor.recipe, visitor.selection).terms.loss
    visitor.keep(visitor.turn(clip_low=0.01, clip_high=0.01, beta=0.5))
    assert not visitor.picture.get("running") and not visitor.picture["stale"]
    after = view.context_of(visitor.recipe, visitor.selection).terms.loss
    assert before != after
    named = {name: text for name, *_, text in numbers_in(visitor.picture["panels"]) if name in ("loss", "loss@before")}
    assert len(set(named.values())) == 2
    visitor.keep(visitor.preset("paper/dapo"))
    assert visitor.recipe.preset == "paper/dapo" and visitor.recipe.model in view.bench().sources


def test_what_belongs_to_the_file_cannot_be_changed():
    recipe = offered(file_batches.whole())
    visitor = Visitor().open(f"?lesson=clip&model={recipe.model}").run()
    note = visitor.views[-1]
    assert note["fixed"] and {"prompts", "temperature", "updates", "layout", "learning_rate"} <= set(note["unread"])
    assert {"beta", "clip_low", "aggregation"}.isdisjoint(note["unread"]) and note["unread_sections"] == ["sample", "update"]
    assert visitor.turn(temperature=0.3, updates=3) is None
    visitor.edit(0, "3")
    assert visitor.recipe == recipe and visitor.notices
    opened = Visitor().open(f"?lesson=clip&model={recipe.model}&temperature=0.5&reward=0,0,1&beta=0.3").run()
    assert opened.recipe == replace(recipe, beta=0.3, **link_defaults(recipe))
    assert [notice.split(":")[0] for notice in opened.notices] == ["temperature", "edited_rewards"]


def link_defaults(recipe):
    """What an address leaves out is the preset's, not the file's."""
    names = [name for name in link.started(Recipe(), recipe.preset).convention().__dict__ if name != "max_completion_length"]
    return {name: getattr(Recipe(), name) for name in names if name != "beta"}


# ---- links and the store ----------------------------------------------------------------------------------------------------
def test_a_link_opens_the_very_batch_convention_and_token():
    recipe = offered(file_batches.whole())
    for changed in (recipe, replace(recipe, beta=0.3), replace(recipe, beta=0.04), replace(recipe, aggregation="dr_grpo")):
        query = link.query(changed, Selection(lesson="kl", row=1, pos=4))
        assert len(query) < 400 and "prompt=" not in query
        visitor = Visitor().open(query).run()
        assert visitor.recipe == changed and not visitor.notices
        assert (
            visitor.picture["selected"] == {"row": 1, "pos": 4}
            and link.parse(visitor.picture["query"])[0].model == recipe.model
        )
    assert Visitor().open(f"?lesson=kl&model={recipe.model}").run().recipe == recipe


def test_a_batch_that_has_gone_is_said_and_the_first_recipe_is_shown(bench):
    gone = f"batch-{'0' * 32}"
    assert is_batch(gone) and not is_batch("tiny") and not is_batch("batch-xyz")
    visitor = Visitor().open(f"?lesson=kl&model={gone}").run()
    assert "no longer in this server" in visitor.picture["notice"][0] and visitor.recipe == bench.first_recipe()
    recipe = offered(file_batches.whole())
    visitor = Visitor().open(f"?lesson=kl&model={recipe.model}").run()
    bench.sources.batches._kept.pop(recipe.model)
    visitor.selection, *views = handlers.go({"lesson": "ratio"}, *visitor.state)
    assert "no longer in this server" in views[1]["notice"][0]
    offered(file_batches.whole())


def test_the_store_is_bounded_and_the_least_recently_used_goes_first():
    batches = [file_batches.whole(seed=seed) for seed in range(3)]
    store = Batches(limit=int(2.5 * sum(t.numel() * t.element_size() for _, t in tensors_of(batches[0]))))
    first, second = (store.offer(batch, "x") for batch in batches[:2])
    assert store.offer(batches[0], "again") == first and store.get(first).file == "again"
    third = store.offer(batches[2], "x")
    assert third in store and sum(kept.size for kept in store._kept.values()) <= store.limit
    assert second not in store
    with pytest.raises(ValueError, match="^big: found .* bytes of tensors"):
        Batches(limit=100).offer(batches[0], "big")


def test_names_and_texts_of_a_file_are_never_markup():
    hostile = "<img src=x onerror=alert(1)> [[kl]] [a](javascript:x) `{name}`"
    batch = file_batches.whole()
    meta = batch.meta | {"tokens": {str(i): hostile for i in range(12)}, "preset": hostile, "framework": hostile}
    recipe = offered(replace(batch, meta=meta, finish_reasons=(hostile,) * 4, reward_names=(hostile, "b")), hostile)

    def markup(value, key=""):
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from markup(inner, name)
        elif isinstance(value, list):
            for inner in value:
                yield from markup(inner, key)
        elif isinstance(value, str) and (key.endswith("_html") or key == "html" or "mathml" in key):
            yield value

    for slug in BY_SLUG:
        _, values = lesson(recipe, slug)
        assert not any("<img" in text or "onerror" in text for text in markup(values))
