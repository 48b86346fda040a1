"""How fast the app answers: `python tests/benchmarks/bench_app.py [--model FOLDER] [--sessions 100] [--think 5]`.

It starts the app, opens it in Chromium and walks through all lessons, then lets one more process be N people who each
change the lesson every few seconds, over Gradio's own protocol. All on this machine's loopback. The figures are printed,
never judged: beside each stands the machine's load, since on a busy machine they are larger.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from browser import chromium, running_app, settled  # noqa: E402

from lessons import LESSONS  # noqa: E402

SLUGS = [lesson.slug for lesson in LESSONS]
DESKTOP = {"width": 1440, "height": 1000}
MOST_SESSIONS = 1000
PATIENCE = 600_000  # ms for the first step of a large model
# Remembers when each lesson was drawn: the frame behind the component's own word that it is done.
WATCH = """
window.bench = {drawn: {}, waiting: null};
const frame = act => requestAnimationFrame(() => {
  const behind = new MessageChannel();
  behind.port1.onmessage = act;
  behind.port2.postMessage(0);
});
document.addEventListener('view_change', event => frame(() => {
  if (document.querySelector('[aria-busy=true]')) return;
  bench.drawn[event.detail.lesson] ??= performance.now();
  const waiting = bench.waiting;
  if (waiting?.lesson !== event.detail.lesson) return;
  bench.waiting = null;
  const picture = performance.now() - waiting.start;
  const charts = () => document.querySelector('.chart .loading')
    ? setTimeout(charts, 1) : frame(() => waiting.done([picture, performance.now() - waiting.start]));
  charts();
}));
"""
CLICK = """lesson => new Promise(done => {
  bench.waiting = {lesson, done, start: performance.now()};
  document.querySelector(`.lv-nav a[data-lesson="${lesson}"]`).click();
})"""


# ---- what is printed -------------------------------------------------------------------------------------------------
def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def milliseconds(values: list[float]) -> str:
    return f"p50 {statistics.median(values):7.0f} ms   p95 {quantile(values, 0.95):7.0f} ms   (n = {len(values)})"


def say(what: str, figures: str) -> None:
    print(f"{what:38} {figures:52} load {os.getloadavg()[0]:.1f}", flush=True)


# ---- start and browser -----------------------------------------------------------------------------------------------
@contextmanager
def timed_app(model: str) -> Iterator[str]:
    """The running app; prints how long it took until it answered."""
    start = time.perf_counter()
    with running_app("--model", model, patience=600) as address:
        say("app start to first answer", f"{time.perf_counter() - start:7.2f} s")
        yield address


@contextmanager
def fresh_page(browser) -> Iterator:
    """A page with nothing in its cache."""
    context = browser.new_context(viewport=DESKTOP)
    try:
        page = context.new_page()
        page.add_init_script(WATCH)
        yield page
    finally:
        context.close()


def open_page(page, address: str) -> float:
    """Milliseconds from the start of the navigation until the first lesson is drawn."""
    page.goto(f"{address}?lesson={SLUGS[0]}")
    settled(page, SLUGS[0], PATIENCE)
    return page.wait_for_function(f"() => bench.drawn['{SLUGS[0]}']", timeout=PATIENCE).json_value()


def measure_opening(browser, address: str, rounds: int) -> None:
    times = []
    for _ in range(rounds + 1):
        with fresh_page(browser) as page:
            times.append(open_page(page, address))
    say("page to interactive, model has to run", f"{times[0]:11.0f} ms")
    say("page to interactive", milliseconds(times[1:]))


def measure_walks(browser, address: str, rounds: int) -> None:
    """Every lesson in a new page, then every lesson again, twice."""
    first, later = [], []
    for _ in range(rounds):
        with fresh_page(browser) as page:
            open_page(page, address)
            page.wait_for_function("() => window.Plotly", timeout=PATIENCE)
            page.wait_for_timeout(1500)  # the drawing that warms the chart library up is over
            for times in (first, later, later):
                times += [page.evaluate(CLICK, slug) for slug in (*SLUGS[1:], SLUGS[0])]
    for name, times in (("first visit", first), ("later visits", later)):
        say(f"lesson change, {name}", milliseconds([picture for picture, _ in times]))
        say(f"lesson change, {name}, with charts", milliseconds([charts for _, charts in times]))


# ---- people who step through the lessons -----------------------------------------------------------------------------
class Session:
    """One person's page as Gradio's client sees it."""

    def __init__(self, client: httpx.AsyncClient, endpoints: dict[str, tuple[int, int]]):
        self.client, self.endpoints, self.hash = client, endpoints, uuid.uuid4().hex[:10]

    async def call(self, name: str, data: list | None = None, event: dict | None = None) -> httpx.Response:
        number, inputs = self.endpoints[name]
        body = {
            "data": data or [None] * inputs, "event_data": event, "fn_index": number, "trigger_id": 0,
            "session_hash": self.hash,
        }  # fmt: skip
        try:
            answer = await self.client.post("/gradio_api/run/predict", json=body)
        except (httpx.ReadError, httpx.RemoteProtocolError):  # an idle connection that the server hung up, as browsers do
            answer = await self.client.post("/gradio_api/run/predict", json=body)
        answer.raise_for_status()
        return answer

    async def open(self) -> None:
        _, inputs = self.endpoints["load"]
        await self.call("load", [f"?lesson={SLUGS[0]}", *[None] * (inputs - 1)])
        await self.call("showing")

    async def go(self, slug: str) -> tuple[float, httpx.Response]:
        start = time.perf_counter()
        answer = await self.call("go", event={"lesson": slug})
        return 1000 * (time.perf_counter() - start), answer


async def endpoints_of(client: httpx.AsyncClient) -> dict[str, tuple[int, int]]:
    """The first event of each handler, and the page's own `load`: its number and how many inputs it has."""
    config = (await client.get("/config")).json()
    found: dict[str, tuple[int, int]] = {}
    for event in config["dependencies"]:
        name = "load" if event["targets"][0][1] == "load" else event["api_name"]
        found.setdefault(name, (event["id"], len(event["inputs"])))
    return found


def new_client(address: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=3)  # the server hangs up after 5 s
    return httpx.AsyncClient(base_url=address, timeout=120, limits=limits, headers={"accept-encoding": "gzip, deflate, br"})


async def person(session: Session, steps: int, think: float, times: list[float]) -> None:
    """Opens the app and steps on, pausing `think` seconds on average."""
    await asyncio.sleep(random.uniform(0, think))
    await session.open()
    for step in range(1, steps + 1):
        await asyncio.sleep(random.uniform(0.5, 1.5) * think)
        times.append((await session.go(SLUGS[step % len(SLUGS)]))[0])


async def crowd(address: str, people: int, steps: int, think: float) -> list[float]:
    times: list[float] = []
    async with new_client(address) as client:
        endpoints = await endpoints_of(client)
        await asyncio.gather(*(person(Session(client, endpoints), steps, think, times) for _ in range(people)))
    return times


async def payloads(address: str) -> list[tuple[str, int, int]]:
    """Lesson, bytes as sent, bytes unpacked."""
    sizes = []
    async with new_client(address) as client:
        session = Session(client, await endpoints_of(client))
        await session.open()
        for slug in SLUGS:
            _, answer = await session.go(slug)
            if r"\"panels\":[]" in answer.text:
                raise SystemExit(f"{slug}: nothing is drawn, so there is nothing to measure")
            sizes.append((slug, answer.num_bytes_downloaded, len(answer.content)))
    return sizes


def measure_payloads(address: str) -> None:
    sizes = asyncio.run(payloads(address))
    for slug, sent, raw in sizes:
        print(f"  {slug:14} {sent:8} bytes sent  {raw:8} raw")
    say("largest payload of a lesson", f"{max(sent for _, sent, _ in sizes) / 1000:7.1f} kB sent")


def measure_crowd(address: str, people: int, think: float) -> None:
    """The clients are a process of their own, so that they do not share the app's interpreter."""
    command = [sys.executable, __file__, "--crowd-at", address, "--sessions", str(people), "--think", str(think)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    say(f"server's share, {people} sessions, {think:g} s apart", milliseconds(json.loads(done.stdout)))


# ---- the program -----------------------------------------------------------------------------------------------------
def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--sessions", type=int, nargs="+", default=[100], help="one run for each number of people")
    parser.add_argument("--think", type=float, default=5.0, help="seconds between two steps of one person, on average")
    parser.add_argument("--rounds", type=int, default=5, help="openings; a third of them walk through all lessons")
    parser.add_argument("--crowd-at", help=argparse.SUPPRESS)  # this process is the clients
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    people = [min(count, MOST_SESSIONS) for count in asked.sessions]
    if asked.crowd_at:
        gc.disable()  # a pause of the clients would count as the server's
        print(json.dumps(asyncio.run(crowd(asked.crowd_at, people[0], 10, asked.think))))
        return
    with timed_app(asked.model) as address:
        with chromium() as browser:
            measure_opening(browser, address, asked.rounds)
            measure_walks(browser, address, max(1, asked.rounds // 3))
        measure_payloads(address)
        for count in people:
            measure_crowd(address, count, asked.think)


if __name__ == "__main__":
    main()
