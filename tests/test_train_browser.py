"""The page Train in a real browser: somebody starts a run, sees the reward rise, pauses, goes on, and opens a step of it."""

import json
import re
import time

import pytest
from browser import compare, query, running_app, settled, watched_page

from lessons import link, view
from lessons.train.runs import FOLDER

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
REWARD = """() => [...(document.querySelector('#lesson-train .chart').data?.find(t => t.series === 'reward')?.y ?? [])]"""
SHORT = "?max_completion_length=8&updates=1&train_group_size=4&train_prompts_per_step=4&train_steps=400"


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def address(browser, disk):
    """An app whose kept steps this process can see."""
    view.start("tiny")
    with running_app(env={"TMPDIR": str(disk)}) as url:
        yield url
    assert not list(disk.glob(f"{FOLDER}*")), "a server that is ended leaves kept steps on disk"


def open_train(page, address, query=""):
    page.goto(f"{address}train{query}")
    settled(page, "train")


def act(page, name):
    page.click(f"[data-act={name}]")


def state(page, name):
    page.wait_for_selector(f".run[data-state={name}]", timeout=60_000)


def steps(page):
    return int(page.locator("[data-quantity=step]").inner_text())


def at_step(page, number):
    page.wait_for_function(
        "n => Number(document.querySelector('[data-quantity=step]')?.textContent) >= n", arg=number, timeout=60_000
    )


def test_the_reward_rises_and_a_step_opens_in_lesson_1(address, browser, disk):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_train(page, address)
        start = time.monotonic()
        act(page, "start")
        at_step(page, 14)
        first = page.evaluate(REWARD)
        print(f"{len(first)} steps after {time.monotonic() - start:.1f} s")
        assert sum(first[-4:]) / 4 > sum(first[:4]) / 4 + 0.1
        act(page, "pause")
        state(page, "paused")
        count = steps(page)
        page.wait_for_timeout(900)
        assert steps(page) == count == len(page.evaluate(REWARD))
        act(page, "resume")
        at_step(page, count + 2)
        act(page, "stop")
        state(page, "stopped")
        page.evaluate(
            "() => { const r = document.querySelector('#train-pick'); r.value = 3; r.dispatchEvent(new Event('input')) }"
        )
        kept = int(page.locator(".open").get_attribute("data-step"))
        assert page.locator(".open").inner_text() == f"Open step {kept + 1} in lesson 1"
        page.evaluate("() => { console.error = () => {} }")
        page.click(".open")
        settled(page, "prompt")
        name = link.parse(query(page))[0].model
        run, step = re.fullmatch(r"run-(\w+)-step-(\d+)", name).groups()
        (folder,) = disk.glob(f"{FOLDER}*/{run}/step-{int(step):08d}")
        assert int(step) == kept
        view.bench().sources.offer(name, folder, "tiny")
        assert compare(page) >= 20 and f"step {kept + 1} of a training run" in page.locator(".origin").inner_text()
        for slug in ("sample", "rewards", "advantages"):
            page.keyboard.press("ArrowRight")
            settled(page, slug)
            assert compare(page) >= 20


def test_lesson_15_is_reached_from_14_and_led_back_from(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        page.goto(f"{address}?lesson=update&beta=0.1&max_completion_length=8")
        settled(page, "update")
        page.evaluate("() => { console.error = () => {} }")
        page.keyboard.press("ArrowRight")
        settled(page, "train")
        assert page.url.startswith(f"{address}train?") and "beta=0.1" in query(page)
        assert page.locator("[data-field=beta]").input_value() == "0.1"
        page.keyboard.press("Space")
        page.wait_for_selector(".reveal")
        page.click(".option:nth-child(2)")
        page.wait_for_selector(".option.right")
        page.fill("[data-field=steps]", "7")
        page.keyboard.press("Enter")
        page.locator("[data-field=steps]").blur()
        page.wait_for_function("() => location.search.includes('train_steps=7')")
        page.fill("[data-field=prompts_per_step]", "99")
        page.locator("[data-field=prompts_per_step]").blur()
        page.wait_for_selector(".notice:has-text('found 99 prompts x 8')")
        page.evaluate("() => { console.error = () => {} }")
        page.keyboard.press("ArrowLeft")
        settled(page, "update")
        assert "beta=0.1" in query(page) and "train_" not in query(page)


def test_two_visitors_have_runs_of_their_own_and_who_leaves_pauses_theirs(address, browser):
    with watched_page(browser, viewport=DESKTOP) as one, watched_page(browser, viewport=PHONE, color_scheme="dark") as two:
        for page, seed in ((one, 1), (two, 2)):
            open_train(page, address, f"{SHORT}&train_seed={seed}")
        act(one, "start")
        at_step(one, 3)
        assert two.locator("[data-act=start]").is_visible() and not two.evaluate(REWARD)
        act(two, "start")
        at_step(two, 3)
        act(one, "pause")
        state(one, "paused")
        assert one.evaluate(REWARD)[:3] != two.evaluate(REWARD)[:3]
        now = steps(two)
        at_step(two, now + 2)
        assert two.evaluate("() => document.scrollingElement.scrollWidth - innerWidth") <= 0
        kept = [page.locator(".open").get_attribute("href").split("-step-")[0] for page in (one, two)]
        assert kept[0] != kept[1]
        two.goto(f"{address}compare?lesson=kl&max_completion_length=8")
        two.wait_for_timeout(2500)
        open_train(two, address)
        state(two, "left")
        count = steps(two)
        two.wait_for_timeout(700)
        assert steps(two) == count < 390 and json.dumps(two.evaluate(REWARD)).count(",") == count - 1
        assert two.locator("[data-field=seed]").input_value() == "2"
        act(two, "resume")
        at_step(two, count + 1)
        act(two, "stop")
        state(two, "stopped")
