"""Shape and type checks of every call, as jaxtyping's own decorator makes them, but fast enough to stay on everywhere.

jaxtyping binds the arguments anew for each check of a call, checks them twice, and compiles two functions whenever a `def`
is reached, which a `def` within a function is at every call. Here a function is checked by beartype alone, in a context of
jaxtyping's where its annotations name shapes, and what beartype made of an inner function is kept for the next one.
"""

import functools
import inspect
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

CHECK = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
THEIRS = jaxtyping.jaxtyped
FIRST: dict[CodeType, tuple[FunctionType, FunctionType]] = {}  # an inner function's code: one function of it, and its check


def install() -> None:
    """From here on modules under `--jaxtyping-packages` are checked by `checked`: before any of them is imported."""
    jaxtyping.jaxtyped = lambda fn=None, **options: checked if fn is None else THEIRS(fn, **options)


def checked(target: Any) -> Any:
    """The function, or the class of records, with its annotations checked."""
    if inspect.isclass(target):
        if is_dataclass(target) and isinstance(vars(target).get("__init__"), FunctionType):
            target.__init__ = checked(target.__init__)
        return target
    if isinstance(target, (classmethod, staticmethod)):
        return type(target)(checked(target.__func__))
    if isinstance(target, property):
        return property(*(part and checked(part) for part in (target.fget, target.fset, target.fdel)))
    check = _inner(target) if "<locals>" in target.__qualname__ else CHECK(target)
    if not any(map(names_shape, target.__annotations__.values())):
        return check

    @functools.wraps(target)
    def in_context(*args, **kwargs):
        with THEIRS("context"):  # a name is one size within a call
            return check(*args, **kwargs)

    return in_context


def names_shape(annotation: Any) -> bool:
    is_shape = inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)
    return isinstance(annotation, str) or is_shape or any(map(names_shape, get_args(annotation)))


def _inner(function: FunctionType) -> FunctionType:
    """The check of a function within a function. Its code is always the same; what it closes over is not."""
    first, check = FIRST.get(function.__code__, (None, None))
    if first is None or first.__annotations__ != function.__annotations__:
        check = CHECK(function)
        FIRST[function.__code__] = function, check
        return check
    if check is first:  # nothing to check
        return function
    again = FunctionType(check.__code__, check.__globals__, function.__name__, check.__defaults__, check.__closure__)
    again.__kwdefaults__ = {name: function if value is first else value for name, value in check.__kwdefaults__.items()}
    again.__dict__.update(check.__dict__, __wrapped__=function)
    again.__doc__, again.__qualname__, again.__annotations__ = function.__doc__, function.__qualname__, function.__annotations__
    return again
