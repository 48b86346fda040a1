"""An exhibit in the current step: the faulty batch, offered to the lessons, and what their badges say before and after.

The answer is what the checks say, run as the lessons run them; nothing about it is written down anywhere.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

from grpo_core import Batch, Recipe, batch_of_trace, diagnose
from grpo_core.doctor import Outcome
from grpo_core.planted import BY_SLUG, Exhibit

from .. import LESSONS, badges, prose, view
from ..cache import ByteCache
from ..lesson import Context, Selection
from .link import Wanted

ALARMS = ("warning", "error")  # a badge that turns amber, or red
MOST_LINKS = 512
_made = ByteCache(2**28)
_links: OrderedDict[str, tuple[Recipe, str]] = OrderedDict()  # what links call a faulty batch -> the step and the exhibit
_lock = threading.Lock()


@dataclass(frozen=True)
class Badge:
    """One badge in its lesson, on the sound step's batch and on the faulty one."""

    lesson: str
    sound: Outcome
    faulty: Outcome

    @property
    def turned(self) -> bool:
        """It is an alarm now, and was none, or a lesser one."""
        before, after = (ALARMS.index(o.status) if o.status in ALARMS else -1 for o in (self.sound, self.faulty))
        return after > before


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit put into a step. `lacks`: what the step would have to have for it; there is no batch then."""

    exhibit: Exhibit
    lacks: str = ""
    sound: Batch | None = None
    batch: Batch | None = None
    model: str = ""  # what the lessons call the faulty batch
    badges: tuple[Badge, ...] = ()  # in the order of the lessons

    @cached_property
    def turned(self) -> tuple[Badge, ...]:
        return tuple(badge for badge in self.badges if badge.turned)

    @property
    def answer(self) -> Badge | None:
        """The first badge that turns red; None where none does."""
        return self.turned[0] if self.turned else None

    @cached_property
    def explaining(self) -> Badge | None:
        """The badge that says why what looks broken is right."""
        return next((badge for badge in self.badges if badge.faulty.check == self.exhibit.explained_by), None)


def is_ready(wanted: Wanted) -> bool:
    return _made.ready(_key(wanted)) is not None


def shown(wanted: Wanted) -> Shown:
    """Made once, however many look at it, and on offer to the lessons. Runs the model and every badge: seconds."""
    made = _made.get(_key(wanted), lambda: _shown(wanted))
    still_offered(made)
    return made


def _key(wanted: Wanted) -> tuple:
    return "shown", wanted.recipe, wanted.exhibit


def _shown(wanted: Wanted) -> Shown:
    exhibit, recipe, bench = BY_SLUG[wanted.exhibit], wanted.recipe, view.bench()
    trace = bench.step(recipe).trace
    if exhibit.update >= len(trace.updates):
        return Shown(exhibit=exhibit, lacks="moved")
    policy = bench.policy(recipe)
    sound = batch_of_trace(trace, exhibit.update, policy)
    lacks = exhibit.lacks(sound)
    if lacks:
        return Shown(exhibit=exhibit, lacks=lacks, sound=sound)
    batch = exhibit.planted(sound, policy, bench.reference(recipe))
    own = policy if exhibit.update == 0 else None  # behind an update the weights at hand are not this batch's
    before = _made.get(("sound", recipe, exhibit.update), lambda: _told(bench.sources.offer_batch(sound, "", own)))
    model = bench.sources.offer_batch(batch, title(exhibit), own)
    after = before if exhibit.plant is None else _told(model)
    pairs = tuple(Badge(lesson, before[place], outcome) for place, outcome in after.items() for lesson in [place[0]])
    if exhibit.plant is not None and not any(pair.turned for pair in pairs):
        return Shown(exhibit=exhibit, lacks="effect", sound=sound)
    _remember(model, recipe, exhibit.slug)
    return Shown(exhibit=exhibit, sound=sound, batch=batch, model=model, badges=pairs)


def _told(model: str) -> dict[tuple[str, str], Outcome]:
    """(lesson, check) -> what it says of this batch, as somebody sees it who walks through the lessons."""
    bench = view.bench()
    recipe, said = bench.first_recipe(model), {}
    step = bench.step(recipe)
    for lesson in LESSONS:
        context = Context(bench, step, Selection(lesson=lesson.slug))
        for outcome in badges.outcomes(context, badges.hanging(lesson.slug, lesson.checks)):
            said[lesson.slug, outcome.check] = outcome
    return said


def cause_of(made: Shown) -> str:
    """The check that the doctor begins with, of those that turned; "" where none did."""
    held = view.bench().sources.batch(made.model)
    if held is None or not made.turned:
        return ""
    found = _made.get(("diagnosis", made.model), lambda: diagnose(held.batch, held.policy)).findings
    turned = {badge.faulty.check for badge in made.turned}
    return next((finding.check for finding in found if finding.check in turned), "")


def title(exhibit: Exhibit) -> str:
    """What the lessons call it: the symptom."""
    return prose.sections(prose.DEFAULT, "museum")[exhibit.slug].split("\n", 1)[0]


def offered(wanted: Wanted) -> Recipe:
    """A recipe that can carry the exhibit."""
    return BY_SLUG[wanted.exhibit].recipe(view.bench().first_recipe())


def still_offered(made: Shown) -> None:
    """The lessons' store is bounded: what has left it is offered again, under the same name."""
    if made.batch is not None and view.bench().sources.batch(made.model) is None:
        own = view.bench().policy(_links[made.model][0]) if made.exhibit.update == 0 else None
        view.bench().sources.offer_batch(made.batch, title(made.exhibit), own)


def exhibited(model: str) -> tuple[Recipe, str] | None:
    """The step and the exhibit that a batch of the lessons is; None for any other."""
    with _lock:
        return _links.get(model)


def _remember(model: str, recipe: Recipe, slug: str) -> None:
    with _lock:
        _links[model] = (recipe, slug)
        _links.move_to_end(model)
        while len(_links) > MOST_LINKS:
            _links.popitem(last=False)
