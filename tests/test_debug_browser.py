"""The Debug page in a real browser: a file is dropped, its fault is read, a token is followed, the report is taken along."""

import json

import pytest
from browser import numbers, query, running_app, settled, watched_page
from golden_batch import write_golden

from grpo_core import load_batch, save_batch
from grpo_core.batch_view import row_keys, view_of
from lessons import view
from lessons.debug import handlers, made
from lessons.numbers import shown

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=window.hacked=1>"
ROW = ("row_reward", "row_advantage", "row_length")
DROP = """async ([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name, {type: 'application/json'}));
    for (const kind of ['dragover', 'drop']) document.querySelector('.lv-debug').dispatchEvent(
        new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
}"""


@pytest.fixture
def golden(tmp_path):
    return write_golden(tmp_path / "golden.json", reported={"loss": 0.447})


def complete(page, patience=90_000):
    page.wait_for_selector(".lv-debug article[aria-busy=false]:not(.waiting)", timeout=patience)


def open_page(page, address, more=""):
    page.goto(f"{address}debug?lang=en{more}")
    complete(page)


def in_address(page, text):
    page.wait_for_function("text => location.search.includes(text)", arg=text, timeout=60_000)


def upload(page, path):
    page.set_input_files("#debug-file input[type=file], input[type=file]", path)
    in_address(page, "batch=")
    page.wait_for_selector("#debug-report", timeout=60_000)
    complete(page)


def compare(page, batch) -> int:
    """Every number of a quantity on the page against the batch's own. Returns how many there were."""
    seen = view_of(batch)
    keys, positions, checked = row_keys(seen, {}), batch.token_positions().tolist(), 0
    for name, row, pos, _, text in numbers(page):
        if name in seen.values:
            assert text == shown(seen.values[name][row, positions.index(pos)].item()), (name, row, pos)
        elif name in ROW:
            value = keys[name.removeprefix("row_")][row]
            assert text == shown(int(value) if name == "row_length" else value), (name, row)
        else:
            assert name.startswith(("summary_", "found.", "expected.")), name
            continue
        checked += 1
    return checked


def test_a_dropped_file_is_diagnosed_and_every_number_is_its_own(address, browser, golden):
    batch = load_batch(golden)
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        page.evaluate(DROP, ["golden.json", golden.read_text()])
        page.wait_for_selector("#debug-report", timeout=60_000)
        complete(page)
        assert page.locator(".batch-name strong").inner_text() == "golden.json"
        for name in ("kl", "advantages", "loss_mask"):
            page.select_option('[data-focus="show"]', name)
            page.wait_for_selector(f'.batch-grid [data-quantity="{name}"]')
            complete(page)
            assert compare(page, batch) > int(batch.trained_mask().sum())
        kept = query(page)
        page.reload()
        page.wait_for_selector("#debug-report", timeout=60_000)
        assert query(page) == kept and compare(page, batch)


def test_an_example_leads_from_its_fault_to_the_lesson_that_shows_it(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        page.click('[data-batch="example-length"]')
        page.wait_for_selector('.finding[data-check="eos_in_mask"][data-status="error"]', timeout=60_000)
        complete(page)
        wanted = handlers.load(query(page))[0]
        handlers.finish(wanted)
        batch = handlers.current(wanted)
        found = made.diagnosis(batch)
        listed = page.eval_on_selector_all(".finding", "nodes => nodes.map(node => [node.dataset.check, node.dataset.status])")
        assert listed == [[finding.check, finding.severity] for finding in found.findings]
        assert compare(page, batch.batch)
        first = page.locator('.finding[data-check="eos_in_mask"]')
        assert "Error" in first.locator(".severity").inner_text()
        chip = first.locator(".chip").first
        row, pos = chip.get_attribute("data-row"), chip.get_attribute("data-pos")
        first.locator("a[data-show]").click()
        settled(page, "masks")
        assert f"row={row}" in query(page) and f"pos={pos}" in query(page) and "model=batch-" in query(page)
        page.click('.pages a:has-text("Debug")')
        page.wait_for_selector('.finding[data-check="eos_in_mask"]', timeout=60_000)


def test_sorting_filtering_a_token_and_the_way_back(address, browser, golden):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        upload(page, golden)
        page.select_option('[data-focus="sort"]', "ratio")
        in_address(page, "sort=-ratio")
        complete(page)
        batch = load_batch(golden)
        rows = page.eval_on_selector_all(
            ".batch-grid tbody tr", "rows => rows.map(row => +row.querySelector('td').dataset.row)"
        )
        sizes = [row_keys(view_of(batch), {})["ratio"][row] for row in rows]
        assert sizes == sorted(sizes, reverse=True) and len(rows) == len(batch.row_ids())
        cell = page.locator(".batch-grid td:has([data-quantity])").nth(5)
        row, pos = cell.get_attribute("data-row"), cell.get_attribute("data-pos")
        cell.click()
        in_address(page, f"row={row}&pos={pos}")
        complete(page)
        assert page.locator(f'.token-card [data-quantity="ratio"][data-row="{row}"][data-pos="{pos}"]').count() == 1
        page.locator(".batch-grid tbody td").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_function("row => !location.search.includes(row)", arg=f"row={row}&pos={pos}")
        open_before = query(page)
        page.click('[data-batch="example-ratio"]')
        in_address(page, "batch=example-ratio")
        page.wait_for_selector("#debug-report", timeout=60_000)
        page.go_back()
        page.wait_for_function("text => location.search === text", arg=open_before, timeout=60_000)
        page.wait_for_selector('.batch-name strong:has-text("golden.json")')


def test_a_large_batch_is_walked_in_windows(address, browser, tmp_path):
    from debug_page import large

    batch = large(120, 700)
    save_batch(batch, tmp_path / "large.safetensors")
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        upload(page, tmp_path / "large.safetensors")
        assert page.locator("canvas.overview").count() == 1 and compare(page, batch)
        page.click('[data-focus="down"]')
        in_address(page, "top=16")
        complete(page)
        box = page.locator("canvas.overview").bounding_box()
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
        in_address(page, "left=")
        complete(page)
        assert compare(page, batch) and page.locator(".batch-grid td").count() <= 16 * 32


def test_the_report_is_saved_and_opens_without_a_request(address, browser, golden, tmp_path):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        upload(page, golden)
        with page.expect_download() as saved:
            page.click('[data-save="json"]')
        assert {"findings", "passed", "skipped"} == set(json.load(open(saved.value.path(), encoding="utf-8")))
        page.wait_for_timeout(300)
        with page.expect_download() as saved:
            page.click('[data-save="html"]')
        assert saved.value.suggested_filename == "golden-report.html"
        target = tmp_path / "report.html"
        saved.value.save_as(target)
    with watched_page(browser, viewport=PHONE, offline=True) as page:
        page.set_content(target.read_text(encoding="utf-8"))
        assert "golden.json" in page.locator("h1").inner_text()
        assert page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hostile_text_is_text_and_nothing_is_wider_than_the_window(address, browser, tmp_path, size):
    meta = {"tokens": {str(i): HOSTILE for i in range(40)}, "framework": HOSTILE, "eos_token_ids": [2], HOSTILE: HOSTILE}
    path = write_golden(tmp_path / "x.json", meta=meta, reported={HOSTILE: 1.0}).rename(tmp_path / f"{HOSTILE}.json")
    with watched_page(browser, viewport=size) as page:
        open_page(page, address, "&show=%3Cimg+src%3Dx+onerror%3Dwindow.hacked%3D1%3E&filter=%3Cimg%3E")
        assert "show: found '<img" in page.locator(".notices").inner_text()
        upload(page, path)
        page.wait_for_timeout(500)
        assert "<img" in page.locator(".batch-grid .piece").first.inner_text()
        assert page.evaluate("() => window.hacked === undefined && !document.querySelector('img[src=x]')")
        assert page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0


def test_a_bad_file_is_said_in_one_line_and_the_batch_stays(address, browser, tmp_path, golden):
    (tmp_path / "bad.json").write_text("[1")
    with watched_page(browser, viewport=DESKTOP) as page:
        open_page(page, address)
        upload(page, golden)
        page.set_input_files("input[type=file]", tmp_path / "bad.json")
        page.wait_for_selector(".notice:has-text('bad.json')")
        assert page.locator(".notice").count() == 1 and page.locator(".batch-name strong").inner_text() == "golden.json"


def test_the_file_of_the_command_line_is_everybodys(browser, golden):
    view.start("tiny")
    with running_app("--batch", str(golden)) as url, watched_page(browser, viewport=DESKTOP) as page:
        page.goto(f"{url}debug")
        page.wait_for_selector("#debug-report", timeout=60_000)
        assert page.locator(".batch-name strong").inner_text() == "golden.json" and compare(page, load_batch(golden))
