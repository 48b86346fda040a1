"""Presets in a real browser: by link, by the form, back and forward, and what the lessons then show."""

from dataclasses import replace

import pytest
from browser import compare, open_lesson, query, settled, watched_page

from grpo_core import Recipe
from grpo_core.presets import PRESETS
from lessons import choice, link

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}


@pytest.mark.parametrize("name", ["verl/kl", "openrlhf/reinforce-baseline", "prime-rl"])
def test_a_preset_in_the_link_is_what_every_lesson_shows(address, browser, name):
    with watched_page(browser, viewport=PHONE) as page:
        for slug in ("advantages", "clip", "backward"):
            open_lesson(page, address, slug, f"&update=1&preset={name}")
            assert link.parse(query(page))[0] == choice.under(Recipe(), name)
            assert compare(page) >= 20
            assert page.locator(".preset-line").inner_text() == f"Preset {name}"
            assert page.evaluate("() => document.scrollingElement.scrollWidth - window.innerWidth") <= 0


def test_a_preset_is_chosen_changed_and_gone_back_to(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "clip", "&update=1")
        before = link.parse(query(page))[0]
        page.click("#lessons-recipe > button")
        assert page.locator("#knob-dual_clip").count() == 0 or not page.locator("#knob-dual_clip").is_visible()
        box = page.locator("#lessons-presets input")
        box.click()
        page.keyboard.type("verl/kl-ex")
        page.get_by_role("option", name="verl/kl-example").click()
        page.wait_for_function("() => location.search.includes('preset=verl%2Fkl-example')")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        recipe = choice.under(before, "verl/kl-example")
        assert link.parse(query(page))[0] == recipe and compare(page, before) >= 20
        assert float(page.locator("#knob-beta input[type=number]").input_value()) == 0.001
        assert page.locator("#knob-dual_clip").is_visible() and PRESETS["verl/kl-example"].source in page.inner_text(
            ".lv-preset"
        )
        field = page.locator("#knob-beta input[type=number]")
        field.fill("0.5")
        field.press("Enter")
        page.wait_for_selector(".lv-preset .moved:has-text('verl/kl-example, changed: beta')")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        assert link.parse(query(page))[0] == replace(recipe, beta=0.5) and compare(page, recipe) >= 20
        page.click(".lv-preset .back")
        page.wait_for_selector(".lv-preset .moved", state="detached")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        assert link.parse(query(page))[0] == recipe
        assert float(page.locator("#knob-beta input[type=number]").input_value()) == 0.001


def test_back_and_forward_bring_the_preset_the_form_and_the_numbers_back(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl", "&update=1&preset=nemo")
        page.click("#lessons-recipe > button")
        page.click('a[href*="lesson=clip&"]')
        settled(page, "clip")
        box = page.locator("#lessons-presets input")
        box.click()
        page.keyboard.type("tinker")
        page.get_by_role("option", name="tinker").first.click()
        page.wait_for_function("() => location.search.includes('preset=tinker')")
        page.wait_for_function("() => !document.querySelector('.stale, .running')")
        for go, slug, name in ((page.go_back, "kl", "nemo"), (page.go_forward, "clip", "tinker")):
            go()
            settled(page, slug)
            page.wait_for_function(f"() => location.search.includes('preset={name}')")
            page.wait_for_function("() => !document.querySelector('.stale, .running')")
            assert link.parse(query(page))[0] == choice.under(Recipe(), name)
            page.wait_for_function(f"() => document.querySelector('#lessons-presets input').value.startsWith('{name} ')")
            assert page.locator(".lv-preset .moved").count() == 0


def test_a_late_answer_does_not_overwrite_the_address_that_back_went_to(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl")
        page.click('a[href*="lesson=clip&"]')
        settled(page, "clip")
        there = page.evaluate(
            """() => new Promise((done) => {
                const left = location.search; // the page that an answer under way is about
                addEventListener("popstate", () => { Lessons.address(left, "clip"); done(location.search); }, { once: true });
                history.back();
            })"""
        )
        assert "lesson=kl" in there
        settled(page, "kl")
        assert "lesson=kl" in query(page)


@pytest.mark.parametrize("delay", [0, 30, 100])
def test_back_and_forward_at_once_end_where_they_were_asked_to(address, browser, delay):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl")
        page.click('a[href*="lesson=clip&"]')
        settled(page, "clip")
        for first, then, slug in (("back", "forward", "clip"), ("back", None, "kl"), ("forward", "back", "kl")):
            page.evaluate(f"() => history.{first}()")
            if then:
                page.wait_for_timeout(delay)
                page.evaluate(f"() => history.{then}()")
            page.wait_for_timeout(600)  # both answers and what follows them
            settled(page, slug)
            assert f"lesson={slug}&" in query(page) and page.evaluate("() => history.state.lesson") == slug
            assert compare(page) >= 20


def test_a_preset_that_there_is_not_is_said_with_the_nearest(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_lesson(page, address, "kl", "&preset=trl/gsop")
        assert "nearest: trl/gspo" in page.locator(".notices").inner_text() and "preset" not in query(page)
        compare(page)
