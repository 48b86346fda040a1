"""The Debug page's grid: windows of any quantity, sorted and filtered, and the picture of a whole batch."""

import json
import math
from dataclasses import replace

import pytest
import torch
from debug_page import finished, large, opened, panel
from golden_batch import write_golden

from grpo_core import save_batch
from grpo_core.batch_view import QUANTITIES, overview, row_keys, view_of
from lessons import view
from lessons.debug import findings, grid, handlers, link, made
from lessons.numbers import shown

MOST_BYTES = 300_000


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.fixture
def wanted():
    return handlers.load("")[0]


@pytest.fixture
def golden(tmp_path, wanted):
    return opened(write_golden(tmp_path / "golden.json"), wanted)


def test_every_number_in_the_grid_is_the_batchs(golden):
    wanted, batch = golden[0], handlers.current(golden[0])
    seen = made.seen(batch, wanted)
    assert set(seen.values) == set(QUANTITIES) - {"entropy"} or set(seen.values) <= set(QUANTITIES)
    for name in seen.values:
        drawn = panel(handlers.choose({"show": name}, wanted)[3], "batch_grid")
        assert drawn["quantity"] == name
        for line in drawn["rows"]:
            for pos, cell in zip(drawn["positions"], line["cells"], strict=True):
                column = batch.positions.index(pos)
                if cell["v"] is not None:
                    assert cell["v"] == shown(seen.values[name][line["row"], column].item())
                else:
                    assert not seen.trained[line["row"], column]


def test_ratio_and_kl_are_what_the_stored_log_probs_say(golden):
    batch = handlers.current(golden[0]).batch
    values, mask = view_of(batch).values, batch.trained_mask()
    assert torch.equal(values["ratio"][mask], (batch.policy_logprobs - batch.old_logprobs).exp()[mask])
    gap = batch.ref_logprobs - batch.policy_logprobs
    assert torch.allclose(values["kl"][mask], (gap.exp() - gap - 1)[mask], atol=1e-6)


@pytest.mark.parametrize("sort", ["ratio", "-ratio", "-kl", "advantage", "-length", "-reward", "-finding"])
def test_rows_are_sorted_by_what_grpo_core_says(golden, sort):
    wanted, batch = golden[0], handlers.current(golden[0])
    rows = [line["row"] for line in panel(handlers.choose({"sort": sort}, wanted)[3], "batch_grid")["rows"]]
    keys = row_keys(made.seen(batch, wanted), findings.rows_named(made.diagnosis(batch)))[sort.removeprefix("-")]
    values = [keys[row] for row in rows]
    assert values == sorted(values, reverse=sort.startswith("-")) and sorted(rows) == list(range(len(rows)))


def test_filters_keep_the_rows_that_they_name(wanted):
    chosen = replace(wanted, batch="example-length")
    *_, page = finished(chosen)
    options = [item["name"] for item in panel(page, "batch_grid")["filters"]]
    assert "check:eos_in_mask" in options and "group:0" in options
    found = made.diagnosis(handlers.current(chosen))
    drawn = panel(handlers.choose({"filter": "check:eos_in_mask"}, chosen)[3], "batch_grid")
    assert {line["row"] for line in drawn["rows"]} == set(findings.rows_named(found, "eos_in_mask"))
    drawn = panel(handlers.choose({"filter": "group:1"}, chosen)[3], "batch_grid")
    assert {line["row"] for line in drawn["rows"]} == {4, 5, 6, 7}
    drawn = panel(handlers.choose({"filter": "check:nothing_of_the_kind"}, chosen)[3], "batch_grid")
    assert drawn["rows"] == [] and "overview" not in drawn


def test_a_large_batch_is_a_window_and_a_picture(tmp_path, wanted):
    save_batch(large(512, 2048), tmp_path / "large.safetensors")
    chosen, _, nav, page = opened(tmp_path / "large.safetensors", wanted)
    drawn = panel(page, "batch_grid")
    assert len(json.dumps(page)) + len(json.dumps(nav)) < MOST_BYTES
    assert (len(drawn["rows"]), len(drawn["positions"])) == (grid.ROWS, grid.COLUMNS) and drawn["all_rows"] == 512
    assert len(drawn["overview"]["lines"]) <= grid.HIGH and len(drawn["overview"]["lines"][0]) <= grid.WIDE
    moved, _, _, page = handlers.choose({"top": 300, "left": 1500}, chosen)
    assert [line["row"] for line in panel(page, "batch_grid")["rows"]] == list(range(300, 316))
    there, _, _, page = handlers.select({"row": 77, "pos": 4 + 1000}, moved)
    assert page["selected"] == {"row": 77, "pos": 1004}
    drawn = panel(page, "batch_grid")
    assert 77 in [line["row"] for line in drawn["rows"]] and 1004 in drawn["positions"]
    back = handlers.load(page["query"])
    assert back[0] == there and not back[1]
    _, _, _, page = handlers.choose({"top": link.MOST, "left": link.MOST}, chosen)
    assert panel(page, "batch_grid")["rows"][-1]["row"] == 511


def test_an_overview_keeps_the_largest_of_what_it_covers():
    batch = large(64, 640)
    seen = view_of(batch)
    ratio = seen.values["ratio"].clone()
    ratio[17, 3] = math.nan
    seen = replace(seen, values={**seen.values, "ratio": ratio})
    made = overview(seen, "ratio", range(64), range(640), 8, 64)
    size = ratio.log().abs()
    blocks = torch.where(seen.trained, size.nan_to_num(nan=math.inf), -1.0).view(8, 8, 64, 10).amax((1, 3))
    assert made.levels[17 // 8][0] == 10 and made.peak == float(blocks[blocks.isfinite()].max())
    for line, sizes in zip(made.levels, blocks.tolist(), strict=True):
        for level, value in zip(line, sizes, strict=True):
            expected = -1 if value < 0 else 10 if math.isinf(value) else math.ceil(value / made.peak * 9 - 1e-6)
            assert level == expected


def test_the_selected_token_shows_all_of_its_numbers(golden):
    wanted, batch = golden[0], handlers.current(golden[0])
    seen = made.seen(batch, wanted)
    row, column = seen.trained.nonzero().tolist()[3]
    pos = batch.positions[column]
    *_, page = handlers.select({"row": row, "pos": pos}, wanted)
    card = panel(page, "token_card")
    assert (card["row"], card["pos"]) == (row, pos) and len(card["lines"]) == len(seen.values)
    for line in card["lines"]:
        assert line["n"]["v"] == shown(seen.values[line["name"]][row, column].item())
    assert handlers.select({"row": "2", "pos": 5}, wanted) is None and handlers.select({"row": 2, "pos": -9}, wanted) is None
