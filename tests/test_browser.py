"""The app in a real browser, from its address to its numbers: each one compared with the trace of the same recipe."""

from dataclasses import replace

import pytest
from browser import checks_on, compare, open_lesson, query, settled, watched_page

from grpo_core import Recipe
from lessons import LESSONS, link, view

SLUGS = [lesson.slug for lesson in LESSONS]
DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_whole_walk_shows_the_trace(address, browser, size):
    with watched_page(browser, viewport=size) as page:
        open_lesson(page, address, SLUGS[0])
        for place, lesson in enumerate(LESSONS):
            if place:
                page.keyboard.press("ArrowRight")
            settled(page, lesson.slug)
            assert compare(page) >= 20
            recipe, selection, _ = link.parse(query(page))
            outcomes = view.context_of(recipe, selection).outcomes(lesson.checks)
            assert checks_on(page) == {outcome.check: outcome.status for outcome in outcomes}
            width = page.evaluate("() => document.scrollingElement.scrollWidth - window.innerWidth")
            assert width <= 0, f"{lesson.slug} is {width} px wider than the window"


@pytest.mark.parametrize("more", ["&update=1", "&layout=sequence", "&ratio=sequence&kl_estimator=k1&update=1"])
def test_other_updates_layouts_and_variants_show_the_trace_too(address, browser, more):
    with watched_page(browser, viewport=DESKTOP) as page:
        for slug in SLUGS[4:]:
            open_lesson(page, address, slug, more)
            assert compare(page) >= 20


def test_a_token_is_selected_once_and_stays_for_the_whole_walk(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "sample")
        chip = page.locator('#lesson-sample [role=button][data-row="5"]').nth(2)
        pos = chip.get_attribute("data-pos")
        chip.click()
        page.wait_for_function(f"() => location.search.includes('row=5&pos={pos}')")
        compare(page)
        for slug in ("ratio", "backward"):
            page.click(f'a[href*="lesson={slug}&"]')
            settled(page, slug)
            assert f"row=5&pos={pos}" in query(page)
            compare(page)
        page.keyboard.press("Escape")
        page.wait_for_function("() => location.search.includes('row=0')")


def test_hover_lights_the_token_everywhere_without_a_round_trip(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "gather")
        page.wait_for_timeout(1500)  # the idle download of the charts' script is over
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        cell = page.locator('#lesson-gather td:has([data-quantity="policy_logprobs"])').first
        cell.scroll_into_view_if_needed()
        cell.hover()
        number = cell.locator("[data-quantity]").first
        row, pos = number.get_attribute("data-row"), number.get_attribute("data-pos")
        lit = page.evaluate(
            """([row, pos]) => [...document.querySelectorAll(`[data-row="${row}"][data-pos="${pos}"]`)]
                .filter(e => getComputedStyle(e).outlineStyle === 'solid').length""", [row, pos],
        )  # fmt: skip
        assert lit >= 3 and not requests


def test_an_edited_reward_flows_through_and_its_link_brings_it_back(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "rewards")
        before = link.parse(query(page))[0]
        cell = page.locator('input[data-edit="1.0"]')
        cell.fill("0.25")
        cell.press("Enter")
        page.wait_for_function("() => location.search.includes('reward=')")
        settled(page, "rewards")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        recipe = link.parse(query(page))[0]
        assert recipe == replace(before, edited_rewards=((1, 0, 0.25),))
        assert compare(page, before) >= 20
        assert page.locator('[data-quantity="loss@before"]').count() == 1  # old and new side by side
        for slug in ("advantages", "aggregation", "backward", "update"):
            page.click(f'a[href*="lesson={slug}&"]')
            settled(page, slug)
            compare(page, before)
        kept = query(page)
        page.reload()
        settled(page, "update")
        assert query(page) == kept
        compare(page)


def test_a_reward_that_is_no_number_is_refused_and_said(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "rewards")
        for typed in ("nan", "lots"):
            cell = page.locator('input[data-edit="1.0"]')
            cell.fill(typed)
            cell.press("Enter")
            page.wait_for_selector(f".notice:has-text('{typed}')")
            assert "reward=" not in query(page)
            compare(page)


def test_keys_walk_reveal_and_let_go(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "shift")
        page.keyboard.press("ArrowLeft")
        settled(page, "logits")
        page.keyboard.press("Space")
        page.wait_for_selector(".question .reveal")
        page.keyboard.press("Space")
        settled(page, "shift")
        assert page.locator(".question .reveal").count() == 0
        page.go_back()
        settled(page, "logits")
        page.go_forward()
        settled(page, "shift")


def test_a_prediction_is_judged_on_this_very_step(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "ratio")
        page.locator(".question .option").nth(1).click()
        page.wait_for_selector(".question .option.wrong")
        page.locator(".question .option").nth(0).click()
        page.wait_for_selector(".question .option.right")


def test_a_hostile_link_is_text(address, browser):
    hostile = "&prompt=%3Cimg+src%3Dx+onerror%3Dwindow.hacked%3D1%3E+3+%2B+4&prompt=$%7Bwindow.hacked=1%7D+{{1}}"
    with watched_page(browser, viewport=DESKTOP) as page:
        for slug in SLUGS:
            open_lesson(page, address, slug, hostile)
            assert page.evaluate("() => window.hacked === undefined && !document.querySelector('img[src=x]')")


def test_an_absurd_link_opens_with_defaults_and_says_so(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl", "&temperature=0&flavour=9&beta=0.1")
        said = page.locator(".notices").inner_text()
        assert "temperature" in said and "flavour" in said
        assert link.parse(query(page))[0] == Recipe(beta=0.1)
        compare(page)


def test_a_knob_changes_the_step_and_the_address(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl", "&update=1")
        before = link.parse(query(page))[0]
        page.click("#lessons-recipe button")
        field = page.locator("#knob-beta input[type=number]")
        field.fill("0.5")
        field.press("Enter")
        page.wait_for_function("() => location.search.includes('beta=0.5')")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        compare(page, before)
        field = page.locator("#knob-seed input")
        field.fill("-4")
        field.press("Enter")
        page.wait_for_selector(".notice:has-text('seed')")
        assert "seed" not in query(page)


def test_two_sessions_never_see_each_other(address, browser):
    with watched_page(browser, viewport=DESKTOP) as one, watched_page(browser, viewport=PHONE) as two:
        open_lesson(one, address, "rewards")
        open_lesson(two, address, "rewards")
        cell = one.locator('input[data-edit="0.0"]')
        cell.fill("0.5")
        cell.press("Enter")
        one.wait_for_function("() => location.search.includes('reward=')")
        two.locator(".question button.show").click()
        two.wait_for_selector(".question .reveal")
        assert "reward=" not in query(two) and one.locator(".question .reveal").count() == 0
        compare(two)
