"""The Debug page without a browser: its numbers are the batch's, its address is its state, and a file's text is only text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from debug_page import checks_of, finished, opened, panel
from golden_batch import write_golden

from grpo_core import CHECKS, diagnose, load_batch
from grpo_core.batch_summary import summary
from grpo_core.batch_view import QUANTITIES, view_of
from grpo_core.planted import PLANTED
from grpo_core.presets import PRESETS
from grpo_core.report import report_html
from lessons import link as lesson_link
from lessons import prose, view
from lessons.debug import findings, handlers, link, made, source
from lessons.numbers import shown

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.fixture
def wanted():
    return handlers.load("")[0]


@pytest.fixture
def golden(tmp_path, wanted):
    return opened(write_golden(tmp_path / "golden.json", reported={"loss": 0.447}), wanted)


# ---- opening -------------------------------------------------------------------------------------------------------------
def test_nothing_is_open_at_first_and_examples_are_offered(wanted):
    _, notices, nav, page = handlers.load("")
    chooser = panel(page, "batch_chooser")
    assert not page["running"] and not notices and [s["id"] for s in page["sections"]] == ["batch"] and chooser["open"]
    assert [card["batch"] for card in chooser["cards"]] == [*link.EXAMPLES, link.STEP]
    assert {item["page"] for item in nav["pages"]} >= {"learn", "debug", "museum", "compare", "train"}


@pytest.mark.parametrize(
    ("name", "check"), [("length", "eos_in_mask"), ("reward", "advantage_group_sum"), ("ratio", "shift_probe")]
)
def test_an_example_is_the_real_step_with_a_fault_that_is_found(wanted, name, check):
    chosen, _, _, page = handlers.choose({"batch": f"example-{name}"}, wanted)
    *_, page = finished(chosen)
    assert checks_of(page)[check] == "error" and not page["running"]
    step = source.step_source(replace(chosen, batch=link.STEP, update=0))
    assert not any(finding.severity == "error" for finding in made.diagnosis(step).findings)
    planted = handlers.current(chosen).batch
    assert (
        torch.equal(planted.row_ids(), step.batch.row_ids()) and planted.reported["num_items"] == planted.trained_mask().sum()
    )
    assert planted.reported["loss"] == pytest.approx(view_of(planted).loss, abs=1e-6)


def test_every_planted_fault_changes_the_batch(wanted):
    finished(replace(wanted, batch=link.STEP))
    sound = source.step_source(replace(wanted, batch=link.STEP, update=0)).batch
    for plant in PLANTED.values():
        bad = plant(sound)
        same = [torch.equal(getattr(bad, n), getattr(sound, n)) for n in ("completion_mask", "advantages", "old_logprobs")]
        assert not all(same)


def test_an_upload_is_deleted_and_a_bad_one_is_one_line(tmp_path, golden):
    folder = tmp_path / ("a1" * 32)
    folder.mkdir()
    path = write_golden(folder / "again.json")
    kept, notices, _, page = handlers.upload(str(path), golden[0])
    assert not folder.exists() and not notices and kept.batch != golden[0].batch
    bad = tmp_path / "bad.json"
    bad.write_text("[1")
    kept, notices, _, page = handlers.upload(str(bad), golden[0])
    assert not bad.exists() and kept.batch == golden[0].batch and len(notices) == 1 and "bad.json" in notices[0]
    assert "\n" not in notices[0] and str(tmp_path) not in notices[0]
    assert handlers.upload(None, golden[0]) is None


def test_a_file_that_is_too_large_says_what_takes_any_size(tmp_path, monkeypatch, golden):
    path = write_golden(tmp_path / "large.json")
    monkeypatch.setattr(source.open_file, "__defaults__", ("", 10))
    _, notices, _, _ = handlers.upload(str(path), golden[0])
    assert notices[0].startswith("large.json: found ") and "allowed here: 10; `python -m grpo_core doctor FILE`" in notices[0]


def test_a_batch_that_has_left_is_said(golden):
    gone = replace(golden[0], batch="0" * 32)
    here, notices, _, page = handlers.drawn(gone, [])
    assert here.batch == link.NONE and notices == [prose.label("en", "debug_gone")] and not page["running"]


# ---- what it says ----------------------------------------------------------------------------------------------------------
def test_the_summary_is_the_batchs(golden):
    batch = handlers.current(golden[0]).batch
    about, said = panel(golden[3], "batch_about"), summary(batch)
    numbers = {item["name"]: item["value"] for item in about["numbers"]}
    mask = batch.trained_mask()
    assert numbers["rows"] == str(len(mask)) and numbers["trained"] == str(int(mask.sum()))
    assert numbers["groups"] == str(len(batch.group_ids.unique())) and numbers["layout"] == batch.layout
    assert {item["name"] for item in about["present"]} == set(said.present)
    assert {item["name"] for item in about["absent"]} == set(said.absent) and all(item["enables"] for item in about["absent"])
    assert about["reported"] == [{"name": "loss", "value": "0.447"}]


def test_findings_are_the_doctors_in_its_order(wanted):
    chosen = replace(wanted, batch="example-ratio")
    page, batch = finished(chosen)[3], handlers.current(chosen)
    listed, found = panel(page, "finding_list"), diagnose(batch.batch, source.policy_of(batch))
    assert [item["check"] for item in listed["findings"]] == [finding.check for finding in found.findings]
    assert [item["check"] for item in listed["passed"]] == list(found.passed)
    assert {item["check"]: item["needs"] for item in listed["skipped"]} == {o.check: ", ".join(o.needs) for o in found.skipped}
    plain = found.as_json(batch.batch)["findings"]
    for item, values in zip(listed["findings"], plain, strict=True):
        assert {line["name"] for line in item["numbers"]} == {*values["expected"], *values["found"]}
        assert all(line["found"] == findings.written(values["found"].get(line["name"])) for line in item["numbers"])


def test_show_me_opens_a_lesson_on_this_batch_at_that_token(wanted):
    chosen = replace(wanted, batch="example-length")
    page, batch = finished(chosen)[3], handlers.current(chosen)
    item = next(i for i in panel(page, "finding_list")["findings"] if i["check"] == "eos_in_mask")
    recipe, selection, messages = lesson_link.parse(item["href"].removeprefix("./"))
    token = item["tokens"][0]
    assert not messages and recipe.model == made.lesson_model(batch) and selection.lesson == "masks"
    assert (selection.row, selection.pos) == (token["r"], token["p"])
    shown_there = view.view(*view.bench().allowed(recipe)[:1], selection)
    assert shown_there["picture"]["selected"]["row"] == token["r"]


# ---- a trainer's numbers, the address, the report ----------------------------------------------------------------------------
def test_what_a_trainer_would_print(golden):
    for name in ("trl", "verl"):
        chosen = handlers.choose({"as": name}, golden[0])[0]
        *_, page = finished(chosen)
        said, seen = panel(page, "trainer_prints"), view_of(handlers.current(chosen).batch, name)
        assert said["preset"] == name and not said["own"]
        assert [line["name"] for line in said["lines"]] == ["loss", *(one.name for one in seen.logged)]
        assert said["lines"][0]["reported"] == "0.447"
        assert [line["value"] for line in said["lines"][1:]] == [shown(one.value) for one in seen.logged]


def test_an_address_is_the_state_and_nonsense_is_said(golden):
    wanted = replace(golden[0], show="kl", sort="-kl", filter="found", top=2, left=3, as_preset="verl")
    assert link.parse(link.query(wanted), wanted.recipe) == (wanted, [])
    query = f"?batch={HOSTILE}&show=x&sort=up&filter=a:b&top=-1&left=99999999999&as=nobody"
    read, messages = link.parse(query.replace(" ", "+"), wanted.recipe)
    assert read == link.Wanted(recipe=wanted.recipe) and len(messages) == 7 and all("\n" not in m for m in messages)


def test_reports_hold_every_finding(golden):
    wanted, batch = golden[0], handlers.current(golden[0])
    found = made.diagnosis(batch)
    saved = handlers.save({"kind": "json"}, wanted)
    assert (
        json.loads(saved["text"]) == json.loads(json.dumps(found.as_json(batch.batch)))
        and saved["file"] == "golden-report.json"
    )
    saved = handlers.save({"kind": "html"}, wanted)
    assert saved["file"] == "golden-report.html" and all(f"<code>{name}</code>" in saved["text"] for name in found.passed)
    assert handlers.save({"kind": "exe"}, wanted) is None


def test_a_reports_page_is_all_that_it_needs_and_nothing_in_it_is_markup(tmp_path, wanted):
    meta = {"tokens": {str(i): HOSTILE for i in range(40)}, "framework": HOSTILE, HOSTILE: HOSTILE, "eos_token_ids": [2]}
    batch = load_batch(write_golden(tmp_path / "x.json", meta=meta, reported={HOSTILE: 1.0}))
    text = report_html(batch, diagnose(batch), HOSTILE)
    assert "<img" not in text and "&lt;img src=x" in text and "<script" not in text
    assert "http" not in text.replace("http-equiv", "") and "default-src 'none'" in text


def test_hostile_text_travels_as_text(tmp_path, wanted):
    path = write_golden(tmp_path / "h.json", meta={"tokens": {str(i): HOSTILE for i in range(40)}, "framework": HOSTILE})
    path = path.rename(tmp_path / f"{HOSTILE.replace('/', '')}.json")
    chosen, _, _, page = opened(path, wanted)
    assert panel(page, "batch_about")["name"].startswith("<img")  # a value that the browser writes as text
    trusted = [value for value in strings(page) if value[0].endswith(("_html", "mathml"))]
    assert trusted and not [text for _, text in trusted if "<img" in text]
    assert "<" not in handlers.save({"kind": "json"}, chosen)["file"]


def strings(value, name=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, name)
    elif isinstance(value, str):
        yield name, value


def test_every_quantity_and_sort_has_its_words():
    texts = prose.labels("en")
    assert all(f"debug_quantity_{name}" in texts and f"debug_about_{name}" in texts for name in QUANTITIES)
    assert all(f"debug_{severity}" in texts for severity in findings.SIGNS)
    assert all((Path(view.__file__).parent / "text/en" / f"{slug}.md").exists() for slug in findings.HOME.values())
    assert set(findings.HOME) == set(CHECKS)
    assert PRESETS["trl"].name in {row["name"] for row in [{"name": "trl"}]}
