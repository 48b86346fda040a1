"""The cache behind the lessons: made once however many ask, bounded in bytes, nothing kept of a failure."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lessons.cache import ByteCache, size_of


def test_a_value_is_made_once_however_many_ask_at_the_same_time():
    cache, made, gate = ByteCache(10**6), [], threading.Event()

    def make():
        gate.wait(5)
        made.append(1)
        return torch.zeros(4)

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(cache.get, "key", make) for _ in range(16)]
        gate.set()
        values = [future.result() for future in futures]
    assert len(made) == 1 and all(value is values[0] for value in values)


def test_the_oldest_values_go_first_and_the_newest_always_stays():
    cache = ByteCache(3000)
    for name in "abc":
        cache.get(name, lambda: torch.zeros(300))  # 1200 bytes each: two fit
    assert cache.ready("a") is None and cache.ready("b") is not None and cache.ready("c") is not None
    cache.get("large", lambda: torch.zeros(10_000))
    assert cache.ready("large") is not None and cache.ready("b") is None


class CountedKey:
    """A key that is dear to hash, as a recipe is."""

    hashed = 0

    def __init__(self, name: int):
        self.name = name

    def __hash__(self) -> int:
        CountedKey.hashed += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountedKey) and self.name == other.name


@pytest.mark.parametrize("limit", [10**6, 64 * 100])  # all stay; each one that comes pushes one out
def test_a_value_more_costs_the_same_however_many_there_are(limit):
    cache, costs = ByteCache(limit), []
    for name in range(400):
        before = CountedKey.hashed
        assert cache.get(CountedKey(name), lambda: None) is None
        costs.append(CountedKey.hashed - before)
    assert max(costs) <= 10, costs
    kept = [name for name in range(400) if CountedKey(name) in cache._entries]
    assert kept == (list(range(400)) if limit == 10**6 else list(range(300, 400)))


def test_a_failure_reaches_everyone_who_waited_and_is_tried_again():
    cache = ByteCache(1000)

    def fail():
        raise ValueError("prompts: too long")

    with pytest.raises(ValueError, match="too long"):
        cache.get("key", fail)
    assert cache.get("key", lambda: 7) == 7


def test_size_counts_every_tensor_below_a_record(trace):
    assert size_of(torch.zeros(3, 5)) == 60
    assert size_of(trace) > size_of(trace.updates[0].terms) > 18 * 4
