"""The museum's page without a browser: the shelf keeps the answers to itself, a guess is judged, the address is the state."""

from dataclasses import replace

import pytest

from grpo_core import CHECKS, Batch
from grpo_core.planted import BY_SLUG, EXHIBITS, NEEDS
from lessons import handlers as lesson_handlers
from lessons import link as lesson_link
from lessons import prose, view
from lessons.lesson import Selection
from lessons.museum import handlers, link, source
from lessons.museum.link import NONE, Wanted


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


def wanted_of(bench, slug):
    return Wanted(recipe=BY_SLUG[slug].recipe(bench.first_recipe()), exhibit=slug)


def finished(wanted):
    assert handlers.finish(wanted) == ""
    return handlers.show("", [], wanted)


def test_the_shelf_tells_symptoms_and_no_answers():
    *_, page = handlers.load("")
    assert len(page["shelf"]) == len(EXHIBITS) >= 15 and page["open"] is None and not page["running"]
    for card in page["shelf"]:
        text = f"{card['slug']} {card['title']} {card['told']}"
        assert not [check for check in CHECKS if check in text]
    assert {exhibit.kind for exhibit in EXHIBITS} >= set("ABCDEFGHI")
    assert sum(exhibit.plant is None for exhibit in EXHIBITS) == 3 and all(exhibit.reports for exhibit in EXHIBITS)


def test_every_exhibit_and_every_need_has_its_words():
    sections, labels = prose.sections("en", "museum"), prose.labels("en")
    assert {f"{slug}{part}" for slug in BY_SLUG for part in ("", " answer")} <= set(sections)
    assert all(f"museum_need_{need}" in labels for need in (*NEEDS, "effect"))


def test_a_guess_is_judged_and_the_answer_waits_for_it(bench):
    wanted, _, _, page = finished(wanted_of(bench, "bits"))
    assert page["open"]["answer"] is None and not page["open"]["known"] and page["open"]["right"] is None
    hints = {"logprob_dtype_mix": "later", "eos_in_mask": "green", "old_equals_ref": "lesson"}
    for guess, label in hints.items():
        *_, page = handlers.guess({"guess": guess}, wanted)
        assert page["open"]["right"] is False and not page["open"]["answer"]
        assert page["open"]["hint"] == prose.label("en", f"museum_hint_{label}")
    *_, page = handlers.guess({"guess": NONE}, wanted)
    assert page["open"]["hint"] == prose.label("en", "museum_hint_some", count=2)
    guessed, _, _, page = handlers.guess({"guess": "ratio_first_step"}, wanted)
    assert page["open"]["right"] and page["open"]["known"] and page["open"]["answer"]["badge"]["check"] == "ratio_first_step"
    assert handlers.load(link.query(guessed))[3]["open"] == page["open"]


def test_nothing_is_wrong_is_a_right_answer(bench):
    wanted = finished(wanted_of(bench, "never-clips"))[0]
    *_, page = handlers.guess({"guess": "ratio_first_step"}, wanted)
    assert page["open"]["hint"] == prose.label("en", "museum_hint_quiet")
    *_, page = handlers.guess({"guess": NONE}, wanted)
    assert page["open"]["right"] and page["open"]["answer"]["badge"]["check"] == "ratio_identically_one"


def test_options_hold_each_badge_once_and_the_right_one(bench):
    for slug, right in (("flat-reward", "advantage_group_sum"), ("negative", NONE), ("one-sided", "truncated_support_bias")):
        page = finished(wanted_of(bench, slug))[3]
        names = [one["check"] for group in page["open"]["options"] for one in group["checks"]]
        assert len(names) == len(set(names)) > 20 and right in {*names, NONE}
        assert all(one["label"] != one["check"] for group in page["open"]["options"] for one in group["checks"])


@pytest.mark.parametrize(
    ("slug", "settings", "need"),
    [
        ("cooler", {}, "temperature"), ("one-sided", {}, "cut"), ("split", {}, "token_mean"),
        ("spikes", {"updates": 1}, "moved"),
        ("no-pull", {"beta": 0.0}, "kl"), ("flat-reward", {"prompts": ("What is 4 + 5?",)}, "groups"),
        ("long-rows", {"aggregation": "token-mean"}, "row_mean"), ("winners-lose", {}, "uneven"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_carry_it_says_so_and_offers_one_that_can(bench, slug, settings, need):
    recipe = replace(bench.first_recipe(), **settings)
    wanted, _, _, page = finished(Wanted(recipe=recipe, exhibit=slug))
    assert page["open"]["lacks"] == prose.label("en", f"museum_need_{need}") and "options" not in page["open"]
    carried = finished(handlers.carry({}, wanted)[0])[3]["open"]
    assert "lacks" not in carried and carried["options"]


def test_an_address_is_untrusted():
    hostile = "<img src=x onerror=alert(1)>"
    wanted, notices, _, page = handlers.load(f"?exhibit={hostile}&guess={hostile}&told=x")
    assert not wanted.exhibit and not wanted.guess and not wanted.told and len(notices) == 2 and page["open"] is None
    assert handlers.choose({"exhibit": [hostile]}, wanted)[0].exhibit == ""
    assert handlers.guess({"guess": {"a": 1}}, wanted)[0].guess == ""


def test_from_the_lessons_back_to_the_exhibit(bench):
    made = source.shown(wanted_of(bench, "endless"))
    here = lesson_link.query(bench.first_recipe(made.model), Selection(lesson="masks"))
    nav = lesson_handlers.load(here, lesson_handlers.Shown(), {})[4]
    there = next(page["href"] for page in nav["pages"] if page["page"] == "museum")
    wanted, notices, _, page = handlers.load(there.removeprefix("museum"))
    assert wanted.exhibit == "endless" and wanted.recipe == wanted_of(bench, "endless").recipe and not notices
    assert page["open"]["walk"][4]["href"].endswith(made.model) or made.model in page["open"]["walk"][4]["href"]


def test_what_has_left_the_lessons_store_is_offered_again(bench):
    wanted = finished(wanted_of(bench, "endless"))[0]
    made = source.shown(wanted)
    bench.sources.batches._kept.pop(made.model)
    handlers.drawn(wanted, [])
    held = bench.sources.batch(made.model)
    assert held is not None and isinstance(held.batch, Batch) and held.file == source.title(made.exhibit)


def test_what_cannot_be_made_is_one_line(bench, monkeypatch):
    monkeypatch.setattr(source, "shown", lambda wanted: (_ for _ in ()).throw(RuntimeError("two\nlines")))
    wanted = Wanted(recipe=replace(bench.first_recipe(), seed=99), exhibit="bits")
    trouble = handlers.finish(wanted)
    assert trouble == "exhibit: two lines"
    after, notices, _, page = handlers.show(trouble, [], wanted)
    assert not after.exhibit and notices == [trouble] and not page["running"]
