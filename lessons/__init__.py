"""The lessons, in order. A lesson is one file; `lesson.Lesson` says what it holds."""

from . import (
    s01_prompt,
    s02_sample,
    s03_rewards,
    s04_advantages,
    s05_masks,
    s06_logits,
    s07_shift,
    s08_gather,
    s09_ratio,
    s10_kl,
    s11_clip,
    s12_aggregation,
    s13_backward,
    s14_update,
)  # fmt: skip
from .lesson import Lesson, lesson_from

LESSONS: tuple[Lesson, ...] = tuple(
    lesson_from(module)
    for module in (
        s01_prompt, s02_sample, s03_rewards, s04_advantages, s05_masks, s06_logits, s07_shift, s08_gather, s09_ratio,
        s10_kl, s11_clip, s12_aggregation, s13_backward, s14_update,
    )
)  # fmt: skip
BY_SLUG = {lesson.slug: lesson for lesson in LESSONS}
