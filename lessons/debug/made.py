"""What is computed of a batch: every quantity, every check, its summary. Once for all visitors."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from grpo_core import diagnose
from grpo_core.batch_summary import Summary, summary
from grpo_core.batch_view import BatchView, view_of
from grpo_core.doctor.diagnose import Diagnosis

from .. import prose, view
from ..cache import ByteCache

if TYPE_CHECKING:
    from .link import Wanted
    from .source import Source

_made = ByteCache(2**30)


def seen(source: "Source", wanted: "Wanted") -> BatchView:
    return _made.get(("view", source.key, wanted.as_preset), lambda: view_of(source.batch, wanted.as_preset or None))


def diagnosis(source: "Source") -> Diagnosis:
    policy = source.reader if source.trusted or source.recipe is None else None
    return _made.get(("diagnosis", source.key), lambda: diagnose(source.batch, policy))


def summed(source: "Source") -> Summary:
    return _made.get(("summary", source.key), lambda: summary(source.batch))


def lesson_model(source: "Source") -> str:
    """The name under which the lessons open this batch. Raises ValueError where it is too large for them."""
    offered, policy = view.bench().sources, source.reader if source.trusted else None
    called = prose.label(prose.DEFAULT, f"debug_example_{source.planted}") if source.planted else source.name

    def offer() -> str:
        return offered.offer_batch(source.batch, called, policy)

    name = _made.get(("lessons", source.key), offer)
    return name if offered.batch(name) is not None else offer()


def kept(key: Hashable, make: Callable[[], Any]) -> Any:
    """What is made once of a batch, however many look at it."""
    return _made.get(key, make)


def is_ready(source: "Source", wanted: "Wanted") -> bool:
    """Whether everything slow has been done."""
    keys = (("view", source.key, wanted.as_preset), ("diagnosis", source.key), ("summary", source.key))
    return all(_made.ready(key) is not None for key in keys)


def prepare(source: "Source", wanted: "Wanted") -> None:
    seen(source, wanted)
    diagnosis(source)
    summed(source)
