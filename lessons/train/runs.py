"""All runs of this server: one per visitor, a few at work at a time, their kept steps in one folder of bounded size.

A visitor is a secret of their browser tab: it never stands in a link, so nobody drives another's run. What a run has kept
is offered to the lessons under a name that cannot be guessed, until the run is replaced, the folder is full (the oldest run
goes first), or the server stops.
"""

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer

from ..sources import Source, kept_name
from ..trace import Workbench
from . import plan
from .link import Wanted
from .run import Run

FOLDER = "grpo-lessons-"  # where kept steps are, below the machine's folder for temporary files
AT_WORK = 2  # runs that train at the same time
MOST_RUNS = 12  # remembered: at work, in the line, paused or ended
MEMORY = 2 * 2**30  # lent to the weights of all of them
COPIES = 5  # of the weights in a run: trained, reference, gradient, the optimizer's two moments
DISK = 2**30


class Runs:
    """Every method may be called from any thread."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Run] = OrderedDict()  # visitor -> run, the oldest first
        self._benches: dict[str, Workbench] = {}  # run -> where its steps are on offer
        self._line: list[Run] = []  # those that want to work; the first few do
        self._change = threading.Condition()
        self._folder: tempfile.TemporaryDirectory | None = None
        self._sizes: dict[str, int] = {}  # run -> bytes on disk

    def of(self, visitor: str) -> Run | None:
        return self._runs.get(visitor)

    def start(self, visitor: str, wanted: Wanted, bench: Workbench) -> Run:
        """A new run in the place of the visitor's old one. Raises ValueError where it would not run, or too many do."""
        wanted = replace(wanted, recipe=replace(wanted.recipe, model=bench.sources.origin(wanted.recipe.model)))
        config, source = plan.config_of(wanted), bench.sources[wanted.recipe.model]
        with self._change:
            old = self._runs.pop(visitor, None)
            self._make_room(source.policy.model)
            self._runs[visitor] = run = self._new(wanted, config, bench, source)
        if old:
            self._forget(old)
        run.go()
        return run

    def _new(self, wanted: Wanted, config: TrainConfig, bench: Workbench, source: Source) -> Run:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True)
        trainer = lambda: Trainer(run.config, policy=source.policy.clone())  # noqa: E731 - made when its first turn comes
        run = Run(wanted, config, trainer, bench.turns, self.place, self._keep)
        run.config = plan.keeping(config, source.policy, source.weights, Path(self._folder.name) / run.id)
        self._benches[run.id] = bench
        return run

    def _make_room(self, model) -> None:
        each = COPIES * sum(p.numel() * p.element_size() for p in model.parameters())
        most = max(1, min(MOST_RUNS, MEMORY // each))
        while len(self._runs) >= most:
            idle = next((visitor for visitor, run in self._runs.items() if not run.working), None)
            if idle is None:
                raise ValueError(f"run: found {len(self._runs)} runs at work or waiting here, allowed: {most}; try again later")
            self._forget(self._runs.pop(idle))

    def left(self, session: str) -> None:
        """A page was closed: its run pauses, and comes back with its visitor."""
        for run in list(self._runs.values()):
            if session and run.session == session and run.working:
                run.pause(left=True)

    # ---- places to work at -----------------------------------------------------------------------------------------------
    @contextmanager
    def place(self, run: Run) -> Iterator[bool]:
        """One of the few, in the order of asking; False where the run is told to leave the line before its turn."""
        with self._change:
            self._line.append(run)
            while self.ahead(run) and run.wished():
                self._change.wait(0.5)
        try:
            yield run.wished()
        finally:
            with self._change:
                self._line.remove(run)
                self._change.notify_all()

    def ahead(self, run: Run) -> int:
        """How many must leave before this run has a place."""
        return max(0, self._line.index(run) - AT_WORK + 1) if run in self._line else 0

    # ---- kept steps --------------------------------------------------------------------------------------------------------
    def _keep(self, run: Run, step: int) -> None:
        folder = folder_of(run, step)
        self._sizes[run.id] = self._sizes.get(run.id, 0) + sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        self._benches[run.id].sources.offer(kept_name(run.id, step), folder, run.wanted.recipe.model)
        run.steps_kept.append(step)
        for other in sorted(self._runs.values(), key=lambda other: other.working):  # those at rest, the oldest first
            if sum(self._sizes.values()) <= DISK:
                break
            if other is not run:
                self._delete(other)

    def _delete(self, run: Run) -> None:
        """What it has kept."""
        bench = self._benches.get(run.id)
        while run.steps_kept:
            step = run.steps_kept.pop()
            shutil.rmtree(folder_of(run, step), ignore_errors=True)
            if bench:
                bench.sources.withdraw(kept_name(run.id, step))
        self._sizes.pop(run.id, None)

    def _forget(self, run: Run) -> None:
        """The run with all that it has."""
        run.stop()
        run.settle()
        self._delete(run)
        shutil.rmtree(run.config.out, ignore_errors=True)
        self._benches.pop(run.id, None)

    def clear_disk(self, tries: int = 5) -> None:
        """At once, while runs may still be writing: for a process that ends now."""
        for run in list(self._runs.values()):
            run.pause()
        while self._folder and Path(self._folder.name).exists() and tries:
            shutil.rmtree(self._folder.name, ignore_errors=True)
            tries -= 1

    def close(self) -> None:
        """Every run stops, everything is deleted."""
        while self._runs:
            self._forget(self._runs.popitem()[1])
        if self._folder:
            self._folder.cleanup()
            self._folder = None


def folder_of(run: Run, step: int) -> Path:
    """Where the trainer keeps it."""
    return Path(run.config.out) / f"step-{step:08d}"


runs = Runs()  # of this process
