"""Batch files as what the lessons start from: a bounded store in this server's memory, the least recently used go first.

A link names a batch by the hash of its content: only who has the file, or a link from somebody who has, can ask for it.
"""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core import Policy, Recipe
from grpo_core.batch_step import FIXED, BatchRecipe, recipe_of_batch
from grpo_core.types import Batch

MAX_BYTES = 768 * 2**20  # of all batches together
MAX_TEXT = 400  # characters of one token's text, and of a file's name

NAME = re.compile(r"batch-[0-9a-f]{32}")


def is_batch(name: str) -> bool:
    """Whether a model's name is a batch's, be it still here or not."""
    return bool(NAME.fullmatch(name))


class Tokens(Protocol):
    """What the lessons ask about ids; a loaded `Policy` knows it as well."""

    eos_ids: frozenset[int]

    def piece(self, token_id: int) -> str: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True)
class FileTokens:
    """Ids as a batch file knows them: texts where `meta.tokens` gives them, else the numbers."""

    meta: Mapping[str, Any]

    @cached_property
    def texts(self) -> dict[str, str]:
        known = self.meta.get("tokens")
        return {str(key): str(text)[:MAX_TEXT] for key, text in known.items()} if isinstance(known, Mapping) else {}

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(_whole(self.meta.get("eos_token_ids")))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Start, padding and end."""
        return self.eos_ids | set(_whole([self.meta.get("pad_token_id"), self.meta.get("bos_token_id")]))

    def piece(self, token_id: int) -> str:
        return self.texts.get(str(token_id), str(token_id))

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids


def _whole(values: Any) -> list[int]:
    listed = values if isinstance(values, (list, tuple)) else [values]
    return [value for value in listed if isinstance(value, int) and not isinstance(value, bool)]


@dataclass(frozen=True, kw_only=True)
class BatchSource:
    """A batch file, the recipe that it names, and what its ids stand for."""

    batch: Batch
    file: str  # its name, as the person has it
    recipe: BatchRecipe  # what to show first; its `model` is the source's own name
    policy: Policy | None = None  # the model that it belongs to, where one was given
    preset: str | None = None  # its convention, where somebody named one
    size: int = 0  # bytes

    @cached_property
    def tokens(self) -> Tokens:
        told = FileTokens(self.batch.meta)
        return self.policy if self.policy is not None and not told.texts else told


class Batches:
    """Every method may be called from any thread."""

    def __init__(self, limit: int = MAX_BYTES):
        self.limit, self._lock = limit, threading.Lock()
        self._kept: OrderedDict[str, BatchSource] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str) -> BatchSource | None:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def offer(self, batch: Batch, file: str, policy: Policy | None = None, preset: str | None = None) -> str:
        """Keep it, and say under which name links find it. Raises ValueError where it alone is too large, or where
        `preset` is none."""
        size = sum(value.numel() * value.element_size() for _, value in tensors_of(batch))
        if size > self.limit:
            raise ValueError(f"{file}: found {size} bytes of tensors, allowed here: {self.limit}")
        name = f"batch-{digest(batch, policy.name if policy else '')}"
        recipe = replace(recipe_of_batch(batch, preset), model=name)
        source = BatchSource(batch=batch, file=file[:MAX_TEXT], recipe=recipe, policy=policy, preset=preset, size=size)
        with self._lock:
            self._kept[name] = source
            self._kept.move_to_end(name)
            while sum(kept.size for kept in self._kept.values()) > self.limit:
                self._kept.popitem(last=False)
        return name


def tensors_of(batch: Batch) -> list[tuple[str, Tensor]]:
    """Its tensors by name."""
    held = ((f.name, getattr(batch, f.name)) for f in fields(batch))
    return [(name, value) for name, value in held if isinstance(value, Tensor)]


def digest(batch: Batch, beside: str = "") -> str:
    """32 hexadecimal digits of the sha256 of all that the batch holds, and of what it was given with."""
    state = hashlib.sha256(beside.encode("utf-8", "backslashreplace"))
    for name, value in tensors_of(batch):
        state.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
        state.update(value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    rest = {name: getattr(batch, name) for name in ("reward_names", "finish_reasons", "meta", "reported", "derived")}
    state.update(json.dumps(rest, sort_keys=True, default=str).encode("utf-8", "backslashreplace"))
    return state.hexdigest()[:32]


def of_batch(source: BatchSource, recipe: Recipe, bare: bool) -> tuple[Recipe, list[str]]:
    """What an address asks of a batch file: its convention may be another, its rows and tokens are what they are."""
    plain = Recipe(model=recipe.model)
    if bare and recipe == plain:
        return source.recipe, []
    kept = {name: getattr(source.recipe, name) for name in FIXED}
    refused = [name for name in FIXED if getattr(recipe, name) not in (getattr(plain, name), kept[name])]
    values = {f.name: getattr(recipe, f.name) for f in fields(Recipe)} | kept
    return BatchRecipe(**values), [f"{name}: the batch file's own is used" for name in refused]
