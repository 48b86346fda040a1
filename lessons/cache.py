"""Values that are made once and kept while there is room: bounded in bytes, made once however many ask."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def size_of(value: Any) -> int:
    """Bytes of all tensors and texts below a value, and a little for everything that holds them."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, str):
        return len(value) + 64
    if isinstance(value, dict):
        return sum(map(size_of, value.values())) + 64 * (1 + len(value))
    if is_dataclass(value):
        return sum(size_of(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, (tuple, list)):
        return sum(map(size_of, value)) + 64
    return 64


class ByteCache:
    """Least recently used values up to so many bytes; a value is made once though many ask at the same time."""

    def __init__(self, limit: int):
        self.limit, self._lock, self._entries = limit, threading.Lock(), OrderedDict[Hashable, Future]()
        self._sizes: dict[Hashable, int] = {}  # of what has been made
        self._held = 0  # their sum

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            future = self._entries.get(key)
            mine = future is None
            if mine:
                future = self._entries[key] = Future()
            self._entries.move_to_end(key)
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._entries.pop(key, None)  # the next one who asks tries again
                future.set_exception(error)
            else:
                self._trim(key, size_of(future.result()))
        return future.result()

    def ready(self, key: Hashable) -> Any | None:
        """The value if it has been made, without waiting."""
        with self._lock:
            future = self._entries.get(key)
        return future.result() if future and future.done() and not future.exception() else None

    def _trim(self, newest: Hashable, size: int) -> None:
        """Only those that go are looked at: there may be many, and hashing a recipe takes its time."""
        with self._lock:
            self._sizes[newest] = size
            self._held += size
            gone, left = [], self._held
            for key in self._entries:
                if left <= self.limit:
                    break
                if key in self._sizes and key != newest:
                    gone.append(key)
                    left -= self._sizes[key]
            for key in gone:
                del self._entries[key], self._sizes[key]
            self._held = left
