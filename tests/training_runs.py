"""Runs of the page Train, as its tests start and await them."""

import time

from lessons.train import handlers
from lessons.train.run import FINISHED
from lessons.train.runs import runs

SMALL = "?max_completion_length=6&updates=1&train_group_size=4&train_prompts_per_step=2"


def opened(more="", visitor="a", session="tab"):
    return handlers.load(SMALL + more, visitor, session)[0]


def begun(more="&train_steps=400", visitor="a", session="tab"):
    wanted = opened(more, visitor, session)
    handlers.start(visitor, session, wanted)
    return wanted, runs.of(visitor)


def until(true, patience=30.0):
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def finished(more, visitor="a"):
    _, run = begun(more, visitor)
    until(lambda: run.ended and not run.working)
    assert run.state == FINISHED, run.trouble
    return run


def curves(run):
    """The history without what the clock says."""
    return [{name: value for name, value in step.items() if not name.startswith("seconds/")} for step in run.history]
