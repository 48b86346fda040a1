"""The Compare page without a browser: its numbers are grpo_core's, its address is its state, and bad input is one line."""

import csv
import io
import math
from dataclasses import replace

import pytest
from golden_batch import LOSSES, write_golden

from grpo_core.bridge import KNOBS, bridge, differing
from grpo_core.compare import DIRECTIONS, NUMBERS, compare, directions, evaluate
from grpo_core.fingerprint import fingerprint
from grpo_core.presets import PRESETS
from lessons import prose, view
from lessons.compare import bridge as bridge_section
from lessons.compare import handlers

HOSTILE = "<img src=x onerror=alert(1)>"
SHORT = "?lesson=kl&max_completion_length=6&group_size=3&seed=5"


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.fixture
def golden(tmp_path):
    """The page with the golden file on it, complete."""
    return opened(write_golden(tmp_path / "golden.json"))


def opened(path, wanted=None):
    wanted = handlers.upload(str(path), wanted or handlers.load("")[0])[0]
    return finished(wanted)


def finished(wanted):
    trouble = handlers.finish(wanted)
    return handlers.show(trouble, [], wanted)


def section(page, name):
    return next(item["panels"] for item in page["sections"] if item["id"] == name)


def rows_of(page):
    (panel,) = section(page, "table")
    return {row["name"]: row for row in panel["rows"]}


def inputs_of(wanted):
    return handlers.current(wanted).inputs


# ---- the table -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("against", ["trl", "nemo"])
def test_the_table_holds_what_grpo_core_computes(golden, against):
    wanted, _, _, page = handlers.choose({"a": against}, golden[0])
    shown = rows_of(page)
    assert list(shown) == list(PRESETS) and {name: shown[name]["cells"][0]["v"] for name in LOSSES} == LOSSES
    for row in compare(inputs_of(wanted), against=against):
        numbers = [cell and cell["x"] for cell in shown[row.preset.name]["cells"]]
        assert numbers[:-1] == list(row.numbers().values())[:-1]
        assert numbers[-1] == pytest.approx(row.cosine, abs=1e-12)


def test_a_preset_that_the_batch_lacks_something_for_is_listed_without_a_number(tmp_path):
    wanted, _, _, page = opened(write_golden(tmp_path / "short.json", without=("sampler_logprobs",)))
    shown = rows_of(page)
    assert shown["tinker"] | {"summary": ""} == {
        "name": "tinker", "trainer": "tinker-cookbook", "version": PRESETS["tinker"].version, "summary": "", "default": True,
        "needs": "needs sampler_logprobs", "cells": [],
    }  # fmt: skip
    assert "needs" not in shown["trl"]
    _, _, _, page = handlers.choose({"b": "tinker"}, wanted)
    assert section(page, "bridge")[0]["needs"] == ["tinker needs sampler_logprobs, which this batch does not have."]
    assert len(section(page, "bridge")) == 1 and len(section(page, "tokens")) == 1


def test_csv_is_the_whole_table_in_full_precision(golden):
    value = handlers.export(replace(golden[0], filter="nothing like it"))
    lines = list(csv.DictReader(io.StringIO(value["csv"])))
    assert [line["preset"] for line in lines] == list(PRESETS)
    shown = rows_of(golden[3])
    for line in lines:
        cells = shown[line["preset"]]["cells"]
        assert [float(line[name]) if line[name] else None for name in NUMBERS] == [cell and cell["x"] for cell in cells]


def test_an_unfolded_row_says_what_the_trainer_would_log(golden):
    wanted, part = handlers.arrange({"open": "roll", "sort": "-kl_part", "all": True}, golden[0])
    assert (wanted.open, wanted.sort, wanted.all) == ("roll", "-kl_part", True) and part["part"]
    said = part["details"]
    assert said["source"] == PRESETS["roll"].source and {one["name"] for one in said["logged"]} >= {"actor/pg_loss@sum"}
    assert "open=roll" in part["query"] and handlers.arrange({"open": "rol"}, golden[0])[0].open == ""


# ---- the bridge ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("a", "b"), [("trl", "verl"), ("trl", "nemo"), ("roll/dual-clip", "prime-rl"), ("trl", "trl")])
def test_the_bars_are_the_bridge_and_sum_exactly(golden, a, b):
    wanted, _, _, page = handlers.choose({"a": a, "b": b}, golden[0])
    bars = bridge(inputs_of(wanted), PRESETS[a].convention(), PRESETS[b].convention())
    _, *panels = section(page, "bridge")
    said = [card["knobs"] for card in panels[-1]["bars"]] + [[item["knob"]] for item in panels[-1]["idle"]]
    assert sorted(knob for knobs in said for knob in knobs) == sorted(differing(*(PRESETS[n].convention() for n in (a, b))))
    if a != b:
        ends, steps = panels[0]["figure"]["data"]
        assert steps["x"] == [bar.delta for bar in bars if bar.touched.any()]
        losses = [evaluate(inputs_of(wanted), PRESETS[name].convention()).loss for name in (a, b)]
        assert [x + base for x, base in zip(ends["x"], ends["base"], strict=True)] == pytest.approx(losses)
        assert math.fsum(steps["x"]) == losses[1] - losses[0]
    else:
        assert "compute the same loss" in panels[0]["sentence"]


def test_a_bar_moves_and_its_order_is_as_short_as_can_be(golden):
    wanted = handlers.choose({"b": "nemo"}, golden[0])[0]
    before = [card["knobs"][0] for card in section(finished(wanted)[3], "bridge")[-1]["bars"]]
    wanted, _, _, page = handlers.reorder({"knob": before[1], "by": -1}, wanted)
    after = [card["knobs"][0] for card in section(page, "bridge")[-1]["bars"]]
    assert after == [before[1], before[0], *before[2:]] and wanted.order == (before[1],)
    back, _, _, page = handlers.reorder({"knob": before[1], "by": 1}, wanted)
    assert back.order == () and [card["knobs"][0] for card in section(page, "bridge")[-1]["bars"]] == before
    assert handlers.reorder({}, wanted)[0].order == () and handlers.reorder({"knob": before[0], "by": 5}, wanted) is None
    assert handlers.choose({"a": "roll"}, wanted)[0].order == ()


def test_every_knob_has_its_words_and_formulas_can_be_drawn(golden):
    inputs = inputs_of(golden[0])
    for start, end in (
        ("trl", "roll/example-yaml"),
        ("verl/kl_cov", "prime-rl"),
        ("openrlhf", "areal/decoupled"),
        ("trl/vespo", "tinker"),
    ):
        wanted = replace(golden[0], a=start, b=end)
        for bar in bridge(inputs, PRESETS[start].convention(), PRESETS[end].convention()):
            for side in (bar.before, bar.after):
                made = bridge_section._formula(bar, side, handlers.current(wanted))
                assert "<<" not in made and (not made or made.startswith("<math"))
    assert all(f"bridge_{knob}" in prose.labels("en") for knob in KNOBS)


# ---- tokens ------------------------------------------------------------------------------------------------------------------
def test_directions_are_counted_and_each_token_has_its_sign(golden):
    wanted, _, _, page = golden
    inputs = inputs_of(wanted)
    first, second = (evaluate(inputs, PRESETS[name].convention()) for name in ("trl", "verl"))
    found = directions(first.grad, second.grad, inputs.mask)
    chart, token, grid_a, grid_b = section(page, "tokens")
    assert {item["name"]: item["count"] for item in chart["classes"]} == {name: int(found[name].sum()) for name in DIRECTIONS}
    assert sum(item["count"] for item in chart["classes"]) == int(inputs.mask.sum())
    assert grid_a["quantity"] == "logprob_grad@trl" and grid_a["max"] == grid_b["max"]
    by_code = {code: item["name"] for item in chart["classes"] for code in item["codes"]}
    for line in chart["rows"]:
        for column, code in enumerate(line["codes"]):
            assert (code == ".") == (not inputs.mask[line["row"], column])
            assert code == "." or found[by_code[code]][line["row"], column]
    moved = handlers.select({"row": 2, "pos": 5}, wanted)
    assert moved[3]["selected"] == {"row": 2, "pos": 5} and section(moved[3], "tokens")[1]["rows"] != token["rows"]
    assert handlers.select({"row": "2", "pos": 5}, wanted) is None


# ---- a printed number --------------------------------------------------------------------------------------------------------
def test_a_printed_loss_leads_back_to_its_presets(golden):
    wanted = handlers.choose({"printed": " 0.447 "}, golden[0])[0]
    _, _, _, page = finished(wanted)
    (panel,) = section(page, "printed")
    exact = [m for m in fingerprint(inputs_of(wanted), 0.447, 3) if m.exact]
    assert [m["preset"] for m in panel["matches"]] == [m.preset for m in exact[:12]] and str(len(exact)) in panel["sentence"]
    _, _, _, page = finished(handlers.choose({"printed": "12345.6"}, wanted)[0])
    assert len(section(page, "printed")[0]["matches"]) == 3 and not section(page, "printed")[0]["matches"][0]["exact"]
    kept, notices, *_ = handlers.choose({"printed": HOSTILE}, wanted)
    assert kept.printed == "0.447" and notices == [
        f"printed: found {HOSTILE!r}, allowed: a number as your trainer printed it, such as 0.447"
    ]


def test_the_files_own_number_is_looked_up_until_another_is_typed(tmp_path):
    wanted, _, _, page = opened(write_golden(tmp_path / "said.json", reported={"loss": 0.1164}))
    (panel,) = section(page, "printed")
    assert (panel["value"], panel["from_file"]) == ("0.1164", True) and "verl" in [m["preset"] for m in panel["matches"]]
    (panel,) = section(handlers.choose({"printed": ""}, wanted)[3], "printed")
    assert (panel["value"], panel["matches"]) == ("", [])
