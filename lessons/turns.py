"""Who computes next. One at a time: two would only share the same cores. Whoever waits for a page comes before training."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """`with turns:` for what somebody waits for; `with turns.patiently():` for the steps of runs, in the order they asked."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._taken = False
        self._asking = 0  # how many wait for a page
        self._line: deque[object] = deque()  # runs that wait for their next step

    def __enter__(self) -> None:
        with self._change:
            self._asking += 1
            try:
                self._change.wait_for(lambda: not self._taken)
                self._taken = True
            finally:
                self._asking -= 1

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._taken = False
            self._change.notify_all()

    @contextmanager
    def patiently(self) -> Iterator[None]:
        mine = object()
        with self._change:
            self._line.append(mine)
            try:
                self._change.wait_for(lambda: not self._taken and not self._asking and self._line[0] is mine)
                self._taken = True
            finally:
                self._line.remove(mine)
                self._change.notify_all()
        try:
            yield
        finally:
            self.__exit__()
