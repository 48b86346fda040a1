"""Visitors of one process: nobody sees another, the last change wins, and what is kept is plain."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass

import pytest
from visitor import SHORT, Visitor, timeless

from grpo_core import Recipe
from lessons import handlers, view


@pytest.fixture(autouse=True)
def bench():
    return view.start("tiny")


def leaves(value):
    """Everything inside a state that is not a container."""
    if is_dataclass(value):
        value = [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (tuple, list)):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def test_a_session_keeps_plain_comparable_values_only():
    visitor = Visitor().open(SHORT + "&hide=prose").run().edit(1, "0.5").run()
    visitor.answers, *_ = handlers.answer({"option": "a"}, *visitor.state)
    kept = (*visitor.state, visitor.notices)
    assert {type(leaf) for leaf in leaves(kept)} <= {str, int, float, bool, type(None)}
    assert hash((visitor.recipe, visitor.shown, visitor.selection))
    assert copy.deepcopy(kept) == kept  # Gradio copies the first state for every session
    assert json.loads(json.dumps(visitor.views, allow_nan=False)) == json.loads(json.dumps(visitor.views))


def actions_of_one(visitor: Visitor):
    yield visitor.open(SHORT)
    yield visitor.run()
    yield visitor.edit(0, "3")
    yield visitor.look(handlers.go, {"lesson": "aggregation"})
    yield visitor.run()


def actions_of_two(visitor: Visitor):
    yield visitor.open("?lesson=kl&seed=5&updates=1&max_completion_length=6")
    yield visitor.look(handlers.select, {"row": 3, "pos": 20})
    yield visitor.run()
    yield visitor.keep(visitor.turn(beta=0.5))
    yield visitor.run()


def test_two_sessions_that_take_turns_end_as_each_would_alone():
    one, two = Visitor(), Visitor()
    for _ in zip(actions_of_one(one), actions_of_two(two), strict=True):
        pass
    for visitor, actions in ((one, actions_of_one), (two, actions_of_two)):
        view.start("tiny")
        alone = Visitor()
        assert len(list(actions(alone))) == 5
        assert alone.state == visitor.state and timeless(alone.views) == timeless(visitor.views)


def test_two_sessions_at_the_same_time_end_as_each_would_alone():
    visitors = [Visitor() for _ in range(6)]
    actions = [actions_of_one, actions_of_two] * 3
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda pair: list(pair[0](pair[1])), zip(actions, visitors, strict=True)))
    for alike in (visitors[::2], visitors[1::2]):
        assert all(v.state == alike[0].state and timeless(v.views) == timeless(alike[0].views) for v in alike)


def test_of_two_changes_the_last_one_wins_and_the_first_is_never_computed(bench):
    visitor = Visitor().open().run()
    first = visitor.keep(visitor.turn(seed=1)).recipe
    last = visitor.keep(visitor.turn(seed=2)).recipe
    visitor.run()  # the first change's turn: it finds the last recipe
    assert visitor.recipe == visitor.shown.recipe == last and "seed=2" in visitor.picture["query"]
    assert handlers.finish(visitor.recipe, visitor.shown) == "" and handlers.show("", [], *visitor.state) is None
    assert bench.has_step(last) and not bench.has_step(first)


def test_a_change_while_the_model_runs_is_not_undone_by_what_it_finishes():
    visitor = Visitor().open().run()
    first = visitor.keep(visitor.turn(seed=1)).recipe
    trouble = handlers.finish(first, visitor.shown)
    visitor.keep(visitor.turn(seed=2)).look(handlers.go, {"lesson": "clip"})
    drawn = handlers.show(trouble, visitor.notices, *visitor.state)
    assert drawn[0].seed == 2 and visitor.keep(drawn).picture["running"] and visitor.picture["slug"] == "clip"
    assert visitor.run().shown.recipe.seed == 2


def test_going_back_to_what_was_shown_needs_no_model(bench):
    visitor = Visitor().open().run()
    start = visitor.recipe
    visitor.keep(visitor.turn(beta=0.5)).run().keep(visitor.turn(beta=start.beta))
    assert visitor.recipe == visitor.shown.recipe == start and not visitor.picture.get("running")
    assert visitor.shown.before == Recipe(**{f.name: getattr(start, f.name) for f in fields(start)} | {"beta": 0.5})
