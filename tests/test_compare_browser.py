"""The Compare page in a real browser: what a person picks, sorts, filters and uploads, and the numbers that they then see."""

import csv
import math

import pytest
from browser import running_app, settled, watched_page
from golden_batch import LOSSES, write_golden

from grpo_core.presets import PRESETS

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
SHORT = "lesson=kl&max_completion_length=8"
COLUMN = """q => [...document.querySelectorAll('.preset-table tbody tr[data-preset]')].map(
    row => [row.dataset.preset, row.querySelector(`[data-quantity="${q}"]`)?.textContent ?? null])"""
FIGURE = """() => document.querySelector('#compare-bridge .js-plotly-plot').data.map(
    t => ({name: t.name, x: [...t.x], base: [...t.base]}))"""


@pytest.fixture
def golden(tmp_path):
    return write_golden(tmp_path / "golden.json", reported={"loss": 0.447})


def complete(page):
    page.wait_for_selector(".lv-compare article[aria-busy=false]:not(.waiting) #compare-printed", timeout=90_000)


def open_page(page, address, more="", golden=None):
    page.goto(f"{address}compare?{SHORT}{more}")
    complete(page)
    if golden:
        page.set_input_files("input[type=file]", golden)
        in_address(page, "batch=")
        complete(page)


def in_address(page, text):
    page.wait_for_function("text => location.search.includes(text)", arg=text, timeout=60_000)


def figure(page):
    page.wait_for_selector("#compare-bridge .js-plotly-plot .bars, #compare-bridge .js-plotly-plot svg.main-svg")
    return {trace["name"]: trace for trace in page.evaluate(FIGURE)}


def number(text):
    return float(text.replace("−", "-"))


def test_the_golden_batch_gives_each_trainer_its_own_loss(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, golden=golden)
        shown = dict(page.evaluate(COLUMN, "loss"))
        assert {name: shown[name] for name in LOSSES} == LOSSES
        assert page.locator(".batch-name strong").inner_text() == "golden.json"
        assert page.locator(".printed").input_value() == "0.447"
        page.wait_for_selector('.matches [data-match="roll"]', timeout=60_000)
        kept = page.evaluate("() => location.search")
        page.reload()
        complete(page)
        assert page.evaluate("() => location.search") == kept and dict(page.evaluate(COLUMN, "loss")) == shown


def test_two_presets_are_picked_and_their_bars_sum_exactly(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, golden=golden)
        for a, b in (("trl", "verl"), ("roll", "nemo")):
            page.select_option('[data-side="a"]', a)
            in_address(page, f"a={a}")
            page.select_option('[data-side="b"]', b)
            in_address(page, f"b={b}")
            complete(page)
            page.wait_for_function(
                "name => document.querySelector('#compare-bridge').textContent.includes(name)", arg=f"From {a} to {b}"
            )
            drawn, cards = figure(page), page.locator(".bar-card [data-quantity=delta]").all_inner_texts()
            first, last = (x + base for x, base in zip(drawn["ends"]["x"], drawn["ends"]["base"], strict=True))
            assert math.fsum(drawn["bars"]["x"]) == last - first and len(cards) == len(drawn["bars"]["x"])
            assert [number(text) for text in cards] == pytest.approx(drawn["bars"]["x"], abs=5e-7)
            ends = page.locator(".sum [data-quantity=loss]").all_inner_texts()
            assert ends == [LOSSES[a], LOSSES[b]]
        assert "advantage_std" in page.locator(".bar-card").nth(1).inner_text()


def test_bars_are_reordered_and_back_and_forward_follow(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, "&b=nemo", golden)
        knobs = "() => [...document.querySelectorAll('.bar-card')].map(card => card.dataset.knob)"
        before, total = page.evaluate(knobs), math.fsum(figure(page)["bars"]["x"])
        page.locator(".bar-card").nth(0).get_by_role("button", name="later").click()
        in_address(page, f"order={before[1]}")
        page.wait_for_function("first => document.querySelector('.bar-card').dataset.knob === first", arg=before[1])
        page.wait_for_timeout(500)
        assert page.evaluate(knobs) == [before[1], before[0], *before[2:]]
        assert math.fsum(figure(page)["bars"]["x"]) == total
        page.go_back()
        page.wait_for_function("first => document.querySelector('.bar-card').dataset.knob === first", arg=before[0])
        page.go_forward()
        page.wait_for_function("first => document.querySelector('.bar-card').dataset.knob === first", arg=before[1])
        in_address(page, f"order={before[1]}")


def test_sorting_filtering_and_unfolding(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, golden=golden)
        for name, aria in (("grad_norm", "descending"), ("grad_norm", "ascending"), ("preset", "ascending")):
            page.click(f'[data-sort="{name}"]')
            assert page.locator(f'th:has([data-sort="{name}"])').get_attribute("aria-sort") == aria
            rows = page.evaluate(COLUMN, "grad_norm")
            values = [row[0] if name == "preset" else number(row[1]) for row in rows]
            assert values == sorted(values, reverse=aria == "descending") and len(values) < 20
        page.fill(".filter", "gspo")
        in_address(page, "filter=gspo")
        named = [row[0] for row in page.evaluate(COLUMN, "loss")]
        assert (
            "verl/gspo" in named
            and "trl" not in named
            and page.locator(".filter").evaluate("n => n === document.activeElement")
        )
        page.fill(".filter", "")
        page.check(".check-all input")
        in_address(page, "all=1")
        assert len(page.evaluate(COLUMN, "loss")) == len(PRESETS)
        page.click('tr[data-preset="roll"] .unfold')
        page.wait_for_selector(".unfolded .logged code:has-text('actor/pg_loss')")
        in_address(page, "open=roll")
        with page.expect_download() as saved:
            page.click('[data-focus="csv"]')
        lines = list(csv.DictReader(open(saved.value.path(), encoding="utf-8")))
        assert [line["preset"] for line in lines] == list(PRESETS)
        assert {name: f"{float(line['loss']):+.6f}" for line in lines if (name := line["preset"]) in LOSSES} == {
            name: text.replace("−", "-") for name, text in LOSSES.items()
        }


def test_a_token_is_selected_and_a_number_is_looked_up(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, golden=golden)
        page.locator('.token-map td[data-direction="only_first"]').first.click()
        in_address(page, "row=1")
        complete(page)
        assert page.locator('[data-quantity="logprob_grad@verl"][data-row="1"]').first.is_visible()
        counts = page.locator("[data-quantity=direction_count]").all_inner_texts()
        assert sum(map(int, counts)) == 49
        page.fill(".printed", "9.87")
        page.press(".printed", "Enter")
        in_address(page, "printed=9.87")
        page.wait_for_selector(".matches [data-quantity=printed_gap]", timeout=60_000)


def test_a_lesson_and_back_keep_the_step(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address, "&seed=7&update=0")
        assert "first update" in page.locator(".batch-note").inner_text()
        page.click('.pages a:has-text("Learn")')
        settled(page, "kl")
        assert "seed=7" in page.url and "max_completion_length=8" in page.url and "/compare" not in page.url
        page.click('.pages a:has-text("Compare")')
        complete(page)
        assert "seed=7" in page.url and "/compare?" in page.url
        page.keyboard.press("ArrowRight")  # no lesson's key here
        assert page.locator(".nav-holder").count() == 0 or not page.locator(".nav-holder").is_visible()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hostile_text_is_text_and_nothing_is_wider_than_the_window(address, browser, tmp_path, size):
    hostile = "<img src=x onerror=window.hacked=1>"
    path = write_golden(tmp_path / "hostile.json", meta={"tokens": {str(i): hostile for i in range(40)}})
    more = "&a=%3Cimg+src%3Dx+onerror%3Dwindow.hacked%3D1%3E&filter=%3Cimg+src%3Dx%3E&printed=%3Cimg+src%3Dx%3E&b=nemo"
    with watched_page(browser, viewport=size) as page:
        open_page(page, address, more)
        assert (
            "a: found '<img" in page.locator(".notices").inner_text() and page.locator(".filter").input_value() == "<img src=x>"
        )
        page.set_input_files("input[type=file]", path)
        in_address(page, "batch=")
        complete(page)
        page.wait_for_timeout(800)
        assert hostile.split()[0] in page.locator(".bar-card .chips").first.inner_text()
        assert page.evaluate("() => window.hacked === undefined && !document.querySelector('img[src=x]')")
        assert page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0


def test_a_bad_file_is_said_in_one_line(address, browser, tmp_path):
    (tmp_path / "bad.json").write_text("[1")
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        page.set_input_files("input[type=file]", tmp_path / "bad.json")
        page.wait_for_selector(".notice:has-text('bad.json: content: found text that is not JSON')")
        assert page.locator(".notice").count() == 1 and page.locator("#compare-table").is_visible()


def test_the_file_of_the_command_line_is_everybodys(browser, golden):
    with running_app("--batch", str(golden)) as url, watched_page(browser, viewport=DESKTOP) as page:
        page.goto(f"{url}compare")
        complete(page)
        assert dict(page.evaluate(COLUMN, "loss"))["trl"] == LOSSES["trl"]
