"""A batch file in the lessons, in a real browser: its numbers, what it lacks, another convention, and when it has gone."""

import contextlib
from dataclasses import replace

import file_batches
import pytest
from batch_views import offered
from browser import compare, free_port, numbers, query, settled, watched_page

from lessons import LESSONS, components, link, shell, theme, view
from lessons.lesson import Selection

SLUGS = [lesson.slug for lesson in LESSONS]
DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)>"


@contextlib.contextmanager
def serving():
    """The app in this process: what is offered here is what it shows."""
    page, port = shell.build("en"), free_port()
    page.launch(
        server_name="127.0.0.1", server_port=port, share=False, ssr_mode=False, footer_links=[], theme=theme.LessonTheme(),
        css=components.css(), head=components.head(), prevent_thread_lock=True, quiet=True,
        allowed_paths=[str(components.plotly_js().parent)],
    )  # fmt: skip
    yield f"http://127.0.0.1:{port}/"
    page.close()


@pytest.fixture(scope="module")
def address(browser):
    view.start("tiny")
    with serving() as url:
        yield url


def open_batch(page, address, recipe, slug, **where):
    page.goto(address + link.query(recipe, Selection(lesson=slug, **where)))
    settled(page, slug)


def same_numbers(page):
    """Every number on the page is the trace's of the link; returns how many."""
    recipe, _ = view.bench().allowed(link.parse(query(page))[0], link.bare(query(page)))
    selection = link.parse(query(page))[1]
    from displayed import expected

    context = view.context_of(recipe, selection)
    shown = numbers(page)
    for name, row, pos, place, text in shown:
        assert text == expected(context, name, row, pos, place), (selection.lesson, name, row, pos)
    return len(shown)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_whole_walk_shows_the_file(address, browser, size):
    recipe = offered(file_batches.whole(), f"{HOSTILE}.json")
    with watched_page(browser, viewport=size) as page:
        open_batch(page, address, recipe, SLUGS[0])
        for place, slug in enumerate(SLUGS):
            if place:
                page.keyboard.press("ArrowRight")
            settled(page, slug)
            assert same_numbers(page) >= (20 if slug != "update" else 5)
            assert HOSTILE in page.text_content(".origin.batch .file")
            width = page.evaluate("() => document.scrollingElement.scrollWidth - window.innerWidth")
            assert width <= 0, f"{slug} is {width} px wider than the window"


@pytest.mark.parametrize("name", ["bare", "NaN", "nothing trained", "tokens differ", "packed", "a KL, and no reference"])
def test_odd_files_draw_every_lesson(address, browser, name):
    batch = file_batches.odd()[name]
    recipe = offered(batch)
    recipe = replace(recipe, beta=0.1) if name == "a KL, and no reference" else recipe
    with watched_page(browser, viewport=DESKTOP) as page:
        open_batch(page, address, recipe, SLUGS[0])
        for place, slug in enumerate(SLUGS):
            if place:
                page.keyboard.press("ArrowRight")
            settled(page, slug)
            same_numbers(page)
        page.wait_for_function("() => document.querySelector('.panels').textContent.includes('Not in this batch')")


def test_a_token_that_is_not_trained_is_selected_and_said(address, browser):
    recipe = offered(file_batches.tool_masked())
    with watched_page(browser, viewport=DESKTOP) as page:
        open_batch(page, address, recipe, "masks", row=0, pos=4)
        assert page.text_content(".origin.batch .untrained")
        assert "row=0&pos=4" in query(page)
        page.locator('#lesson-masks [role=button][data-row="1"][data-pos="3"]').click()
        page.wait_for_function("() => location.search.includes('row=1&pos=3') && !document.querySelector('.untrained')")


def test_another_clip_stands_beside_the_files_and_sampling_cannot_be_changed(address, browser):
    recipe = offered(file_batches.whole())
    with watched_page(browser, viewport=DESKTOP) as page:
        open_batch(page, address, recipe, "clip")
        page.click("#lessons-recipe button")
        page.wait_for_selector("#knob-clip_low", state="visible")
        assert not page.is_visible("#knob-temperature") and not page.is_visible("#section-update")
        box = page.locator("#knob-clip_low input[type=number]")
        box.fill("0.01")
        box.press("Enter")
        page.wait_for_function("() => location.search.includes('clip_low=0.01')")
        page.wait_for_selector('[data-quantity="loss@before"]')
        changed = view.bench().allowed(link.parse(query(page))[0], False)[0]
        assert changed == replace(recipe, clip_low=0.01)
        assert compare_with(page, changed, recipe) >= 20


def compare_with(page, recipe, before):
    from displayed import expected, settings_for

    context = view.context_of(recipe, link.parse(query(page))[1], before)
    shown = numbers(page)
    for name, row, pos, place, text in shown:
        assert text == expected(settings_for(context, name), name.removesuffix("@before"), row, pos, place), name
    return len(shown)


def test_a_batch_that_has_gone_is_said(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        page.goto(f"{address}?lesson=kl&model=batch-{'0' * 32}")
        page.wait_for_function("() => document.querySelector('.notices')?.textContent.includes('no longer in this server')")
        settled(page, "kl")
        assert compare(page) >= 20
