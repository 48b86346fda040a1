"""One visitor's training run. It works in a thread while somebody is there to see it; paused, it has none.

Every step takes one of the server's turns, so that lessons stay quick and runs advance side by side.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from grpo_core.checkpoint import WRITE_ERRORS
from grpo_core.rollout import sample
from grpo_core.tasks import correct
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import StepRecord, Trainer
from grpo_core.types import Rollout

from ..turns import Turns
from .link import Wanted

PATIENCE = 20.0  # seconds without a word from the page after which a run pauses
QUESTIONS = 6  # asked before training and now
ASK_EVERY = 10  # steps
RECENT = 20  # steps that the speed is measured on

WAITING, RUNNING, PAUSED, STOPPED, FINISHED, FAILED = "waiting", "running", "paused", "stopped", "finished", "failed"
WORKING, ENDED = (WAITING, RUNNING), (STOPPED, FINISHED, FAILED)


@dataclass(frozen=True)
class Answers:
    """The same questions with the same random numbers, answered by the weights after so many steps."""

    step: int
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    right: tuple[float | None, ...]

    @classmethod
    def of(cls, step: int, rollout: Rollout) -> "Answers":
        rows = zip(rollout.prompts, rollout.completions, rollout.finish_reasons, strict=True)
        return cls(step, rollout.prompts, rollout.completions, tuple(correct(*row) for row in rows))


@dataclass(eq=False)
class Run:
    """What a run is at this moment. All but the thread's own work is quick."""

    wanted: Wanted  # what the page was set to when it began
    config: TrainConfig
    make: Callable[[], Trainer]
    turns: Turns
    place: Callable[["Run"], AbstractContextManager[bool]]  # one of the few places to work at; False: told to leave the line
    kept: Callable[["Run", int], None]  # told of each step that is on disk, to put it on offer
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    session: str = ""  # the browser tab that looks at it
    state: str = WAITING
    trouble: str = ""  # why it failed
    left: bool = False  # paused because nobody was there
    history: list[dict[str, float]] = field(default_factory=list)  # one per step: the trainer's own metrics
    steps_kept: list[int] = field(default_factory=list)
    first: Answers | None = None
    now: Answers | None = None
    seen: float = field(default_factory=time.monotonic)
    _wish: str = RUNNING  # what it is to become: RUNNING, PAUSED or STOPPED
    _thread: threading.Thread | None = None
    _trainer: Trainer | None = None
    _steps: Iterator[StepRecord] | None = None
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT + 1))

    @property
    def working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def settling(self) -> bool:
        """The step in hand is finished first."""
        return self.working and self._wish != RUNNING

    @property
    def speed(self) -> float | None:
        """Steps per second, lately, waiting for turns included."""
        ends = list(self._ends)
        return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None

    def look(self, session: str) -> None:
        """Somebody is there."""
        self.seen, self.session = time.monotonic(), session

    # ---- what a visitor asks for -----------------------------------------------------------------------------------------
    def go(self) -> None:
        """Start, or go on."""
        if self.ended or self.working and self._wish == RUNNING:
            return
        self.settle()
        if self.working:  # a long step: there is one thread or none
            return
        self._wish, self.state, self.left = RUNNING, WAITING, False
        self.seen = time.monotonic()
        self._ends.clear()
        self._thread = threading.Thread(target=self._work, name=f"train-{self.id}", daemon=True)
        self._thread.start()

    def pause(self, left: bool = False) -> None:
        if not self.ended:
            self._wish, self.left = PAUSED, left

    def stop(self) -> None:
        """For good: what was kept stays, the weights go."""
        self._wish = STOPPED
        if not self.working and not self.ended:
            self.state = STOPPED
            self._drop()

    def settle(self, patience: float = 10.0) -> None:
        """Wait for the step that is being taken, after `pause` or `stop`."""
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(patience)

    # ---- in the thread ---------------------------------------------------------------------------------------------------
    def wished(self) -> bool:
        """Whether to work on. Nobody there counts as a wish to pause."""
        if time.monotonic() - self.seen > PATIENCE:
            self.pause(left=True)
        return self._wish == RUNNING

    def _work(self) -> None:
        try:
            with self.place(self) as mine:
                if mine:
                    self.state = RUNNING
                    self._train()
            self.state = FINISHED if len(self.history) >= self.config.steps else self._wish
        except Exception as error:  # noqa: BLE001 - whatever happens in a thread must reach the page
            if not isinstance(error, (ValueError, *WRITE_ERRORS)):
                logging.getLogger(__name__).exception("a training run failed")
            self.trouble, self.state = " ".join(str(error).split()) or type(error).__name__, FAILED
        if self.ended:
            self._drop()

    def _train(self) -> None:
        if self._trainer is None:
            with self.turns.patiently():
                self._trainer = self.make()
            self._steps = self._trainer.run()
            self.first = self.now = self._ask(self._trainer)
        trainer, steps = self._trainer, self._steps
        assert steps is not None
        while self.wished():
            with self.turns.patiently():
                record = next(steps, None)
            if record is None:
                break
            self._ends.append(time.monotonic())
            if record.step in self.config.trace_steps:
                self.kept(self, record.step)
            self.history.append(record.metrics)
            if len(self.history) % ASK_EVERY == 0:
                self.now = self._ask(trainer)
        if self.now is None or self.now.step != len(self.history):
            self.now = self._ask(trainer)

    def _ask(self, trainer: Trainer) -> Answers:
        texts = tuple(map(trainer.prompts.text, trainer.prompts.first(QUESTIONS)))
        with self.turns.patiently():
            rollout = sample(trainer.policy, texts, replace(trainer.config, prompts=texts, group_size=1, trace_steps=()))
        return Answers.of(len(self.history), rollout)

    def _drop(self) -> None:
        """The weights; the curves and the kept steps stay."""
        self._trainer = self._steps = None
