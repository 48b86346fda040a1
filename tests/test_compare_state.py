"""The Compare page's state: its address and back, batches that are bad, gone or preloaded, and text that is never markup."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from golden_batch import write_golden
from test_compare_page import HOSTILE, SHORT, finished, opened, rows_of, section

from grpo_core import Recipe
from lessons import link as lesson_link
from lessons import view
from lessons.cache import ByteCache
from lessons.compare import handlers, link, source
from lessons.compare.link import Wanted
from lessons.lesson import Selection


@pytest.fixture(scope="module", autouse=True)
def bench():
    return view.start("tiny")


@pytest.fixture(autouse=True)
def no_file_at_start():
    source._first.clear()
    yield
    source._first.clear()


# ---- the address -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"update": 0}, {"update": 3, "a": "roll", "b": "nemo/dual-clip"},
        {"order": ("surrogate", "kl"), "printed": "-1.2e-05"},
        {"sort": "cosine", "filter": "a&b=c #%", "trainer": "NeMo-RL", "all": True, "open": "tinker"},
        {"batch": "step", "printed": ""}, {"batch": "0123abcd", "selection": Selection(lesson="clip", row=3, pos=7)},
        {"recipe": Recipe(beta=0.3, prompts=("a & b", "c=d")), "sort": "-preset"},
    ],
)  # fmt: skip
def test_an_address_is_the_whole_state(changes):
    wanted = Wanted(recipe=Recipe()) if "recipe" not in changes else Wanted(recipe=changes["recipe"])
    wanted = replace(wanted, **changes)
    assert link.parse(link.query(wanted), Recipe()) == (wanted, [])
    recipe, selection, messages = lesson_link.parse(link.lesson_query(wanted))  # and the lessons understand their part
    assert recipe == wanted.recipe and not messages
    assert selection == replace(wanted.selection, update=wanted.update or 0)


def test_a_lessons_address_opens_with_its_step_and_the_last_update():
    wanted, messages = link.parse("?lesson=kl&row=2&pos=9&beta=0.5&lang=en", Recipe())
    assert wanted == Wanted(recipe=Recipe(beta=0.5), selection=Selection(lesson="kl", row=2, pos=9)) and not messages
    assert link.parse("?lesson=kl&update=1", Recipe())[0].update == 1


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("a=tlr", "a: found 'tlr', allowed: one of"), ("b=verll", "nearest: verl"), ("open=<b>", "open: found '<b>'"),
        ("order=surogate", "order: found 'surogate', allowed: knobs; nearest: surrogate"), ("update=-1", "update: found '-1'"),
        ("update=²", "update: found"), ("sort=loos", "nearest: loss"), ("trainer=Verl", "nearest: verl"),
        ("printed=nan", "printed: found 'nan'"), ("printed=1e999", "printed: found"), ("batch=../x", "batch: found '../x'"),
        ("flavour=9", "flavour: unknown part of the link"),
    ],
)  # fmt: skip
def test_what_an_address_gets_wrong_falls_back_and_is_said(part, said):
    wanted, messages = link.parse("?" + part, Recipe())
    assert wanted == Wanted(recipe=Recipe()) and len(messages) == 1 and said in messages[0] and "\n" not in messages[0]


def test_a_link_that_is_far_too_long_opens_with_defaults():
    assert link.parse("?filter=" + "x" * 10**6, Recipe()) == (
        Wanted(recipe=Recipe()),
        [lesson_link.parse("?" + "x" * 1000007)[2][0]],
    )


# ---- the step --------------------------------------------------------------------------------------------------------------
def test_the_step_is_computed_after_the_answer_and_the_first_update_says_why_they_agree():
    wanted, notices, nav, page = handlers.load(SHORT + "&seed=31&update=0")
    assert page["running"] and page["sections"] == [] and not notices
    assert [item["page"] for item in nav["pages"]] == ["learn", "debug", "museum", "compare", "train"]
    assert "seed=31" in nav["pages"][0]["href"]
    wanted, _, _, page = finished(wanted)
    assert not page["running"] and [item["id"] for item in page["sections"]] == [
        "batch",
        "table",
        "bridge",
        "tokens",
        "printed",
    ]
    (batch,) = section(page, "batch")
    assert "first update" in batch["note_html"] and len(batch["updates"]) == 2
    (batch,) = section(finished(handlers.choose({"update": 1}, wanted)[0])[3], "batch")
    assert "note_html" not in batch and batch["updates"][1]["current"]


def test_a_step_that_cannot_be_run_leaves_the_first_one_and_is_said():
    wanted = handlers.load("?max_completion_length=1024")[0]
    trouble = handlers.finish(wanted)
    wanted, notices, _, page = handlers.show(trouble, [], wanted)
    assert wanted.recipe == Recipe() and not page["running"] and notices[0].startswith("prompts: ")


# ---- files -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "{", "text that is not JSON"), ("x.txt", "{}", "file name"), ("x.json", "", "not JSON"),
        ("<img src=x>.json", "[]", "a JSON list"), ("x.safetensors", "{}", "no safetensors file"),
        ("x.json", '{"input_ids": [[1, 2]], "attention_mask": [[1, 1]], "response_mask": [[0, 1]]}', "policy_logprobs"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_and_leaves_the_batch_from_before(tmp_path, name, text, said):
    before = handlers.load(SHORT)[0]
    path = tmp_path / name
    path.write_text(text)
    wanted, (notice,), _, page = handlers.upload(str(path), before)
    assert (
        wanted == before and said in notice and "\n" not in notice and notice.startswith(name) and str(tmp_path) not in notice
    )
    assert not path.exists() and page["notice"] == [notice]


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 1000)
    notice = handlers.upload(str(write_golden(tmp_path / "big.json")), handlers.load(SHORT)[0])[1][0]
    assert notice.startswith("big.json: found ") and "allowed here: 1000" in notice
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 2**20)
    monkeypatch.setattr(source, "MAX_CELLS", 10)
    monkeypatch.setattr(source, "_files", ByteCache(2**20))
    notice = handlers.upload(str(write_golden(tmp_path / "wide.json")), handlers.load(SHORT)[0])[1][0]
    assert notice.startswith("wide.json: found 12 rows x 6 scored columns, allowed here: 10")


def test_a_link_brings_the_file_back_while_it_is_here_and_says_when_it_is_gone(tmp_path, monkeypatch):
    wanted, _, _, page = opened(write_golden(tmp_path / "mine.json"))
    assert str(tmp_path) not in json.dumps(page) and f"batch={wanted.batch}" in page["query"]
    again = handlers.load(page["query"])
    assert again[0] == wanted and rows_of(again[3]) == rows_of(page)
    assert handlers.choose({"batch": "step"}, wanted)[0].batch == "step"
    monkeypatch.setattr(source, "_files", ByteCache(2**20))
    gone, (notice,), _, _ = handlers.load(page["query"])
    assert gone.batch == "step" and "no longer in this server's memory" in notice


def test_a_preloaded_file_is_everybodys_until_they_ask_for_the_step(tmp_path):
    source.preload(str(write_golden(tmp_path / "class.json")))
    wanted = handlers.load("")[0]
    assert wanted.batch == "" and section(finished(wanted)[3], "batch")[0]["name"] == "class.json"
    step = finished(handlers.choose({"batch": "step"}, wanted)[0])
    assert section(step[3], "batch")[0]["other"] == {"label": "Back to class.json", "batch": source._first[0].key}
    with pytest.raises(ValueError, match="nowhere.json: content: found no such file"):
        source.preload(str(tmp_path / "nowhere.json"))


def test_a_file_without_groups_texts_and_finite_numbers_is_drawn(tmp_path):
    document = json.loads(write_golden(tmp_path / "g.json", without=("group_ids", "rewards")).read_text())
    document["advantages"] = [1.0] * 11 + ["NaN"]
    document["policy_logprobs"][0][0] = "NaN"
    (tmp_path / "nan.json").write_text(json.dumps(document))
    _, _, _, page = opened(tmp_path / "nan.json")
    json.dumps(page, allow_nan=False)
    assert rows_of(page)["trl"]["cells"][0] == {"v": "NaN", "x": None}


def test_hostile_text_stays_text(tmp_path):
    tokens = {str(token): HOSTILE for token in range(40)}
    path = write_golden(tmp_path / f"{HOSTILE.replace('/', '')}.json", meta={"tokens": tokens, HOSTILE: 1})
    wanted, _, _, page = opened(path)
    for key, value in walk(page):
        if key.endswith("_html") or key.endswith("mathml"):
            assert "<img" not in (value or "")
    assert any(HOSTILE[:8] in value for _, value in walk(page) if isinstance(value, str))
    page = handlers.load(f"?a={HOSTILE}&filter={HOSTILE}&order={HOSTILE}&printed={HOSTILE}&batch={HOSTILE}")[3]
    assert all("<img" not in (value or "") for key, value in walk(page) if key.endswith("_html"))


def walk(value, key=""):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from walk(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, key)
    else:
        yield key, value


def test_a_hundred_visitors_cost_one_computation(tmp_path, monkeypatch):
    calls, real = [], source._compared
    monkeypatch.setattr(source, "_made", ByteCache(2**26))
    monkeypatch.setattr(source, "_compared", lambda inputs: calls.append(1) or real(inputs))
    wanted = opened(write_golden(tmp_path / "shared.json"))[0]
    for name in ("trl", "roll", "nemo"):
        finished(replace(wanted, a=name))
    assert len(calls) == 1


def test_the_upload_is_deleted_and_never_read_again(tmp_path):
    path = Path(write_golden(tmp_path / "once.json"))
    wanted = opened(path)[0]
    assert not path.exists() and finished(wanted)[3]["sections"]
