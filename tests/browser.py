"""The app as a second process, and Debian's Chromium on it: what a person sees, and what must never happen meanwhile."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from displayed import expected, settings_for
from peers import require

from grpo_core import Recipe
from lessons import link, view

ROOT = Path(__file__).parent.parent
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync".split()

# A page that is left logs that its open streams are cut, which nobody is there to read. (A download only seems to leave it.)
LEAVING = """addEventListener("beforeunload", () => {
  const said = console.error;
  console.error = () => {};
  setTimeout(() => { console.error = said; }, 1000);
})"""

NUMBERS = """() => [...document.querySelectorAll('[data-quantity]')].map(e => [
    e.dataset.quantity, e.dataset.row ?? null, e.dataset.pos ?? null,
    e.dataset.token ?? e.dataset.function ?? e.dataset.layer ?? null, e.tagName === 'INPUT' ? e.value : e.textContent])"""


def require_chromium() -> None:
    require(CHROMIUM, "apt-get install chromium")


@contextlib.contextmanager
def chromium() -> Iterator:
    """Debian's Chromium, without a window."""
    require_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_app(*arguments: str, patience: float = 120, env: dict[str, str] | None = None) -> Iterator[str]:
    """`python app.py` on a free port, in this environment and `env`; its address once it answers."""
    port = free_port()
    command = [sys.executable, "app.py", "--port", str(port), *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    address, deadline = f"http://127.0.0.1:{port}/", time.monotonic() + patience
    try:
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(f"the app did not start: {process.communicate()[0][-2000:]}") from None
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def watched_page(browser, **options) -> Iterator:
    """A page in a session of its own. Fails on a console error, a page error or a request that leaves the machine."""
    context = browser.new_context(**options)
    context.add_init_script(LEAVING)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: None if is_local(request.url) else troubles.append(f"request to {request.url}"))
    try:
        yield page
    finally:
        context.close()
    assert not troubles, troubles


def is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


def open_lesson(page, address: str, slug: str, more: str = "", patience: float = 60_000) -> None:
    page.goto(f"{address}?lesson={slug}{more}")
    settled(page, slug, patience)


def settled(page, slug: str, patience: float = 60_000) -> None:
    """Wait until the lesson is drawn from a finished step."""
    page.wait_for_selector(f"#lesson-{slug}[aria-busy=false] .panels > *", timeout=patience)


def numbers(page) -> list[tuple[str, int | None, int | None, int | str | None, str]]:
    """Every number on the page with the element that it says it is."""
    whole = lambda text: int(text) if text is not None and text.isdecimal() else text  # noqa: E731
    return [(q, whole(row), whole(pos), whole(place), text) for q, row, pos, place, text in page.evaluate(NUMBERS)]


def query(page) -> str:
    return page.evaluate("() => location.search")


def compare(page, previous: Recipe | None = None) -> int:
    """Every displayed number against the trace of what the address bar says. Returns how many there were."""
    recipe, selection, messages = link.parse(query(page))
    assert not messages
    if previous:
        view.bench().step(previous)
    context = view.context_of(recipe, selection, previous)
    shown = numbers(page)
    for name, row, pos, place, text in shown:
        right = expected(settings_for(context, name), name.removesuffix("@before"), row, pos, place)
        assert text == right, (selection.lesson, name, row, pos, place)
    return len(shown)


def checks_on(page) -> dict[str, str]:
    pairs = page.eval_on_selector_all("[data-check]", "nodes => nodes.map(n => [n.dataset.check, n.dataset.status])")
    return dict(pairs)
