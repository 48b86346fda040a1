"""What each setting of a recipe may be: (field, what is allowed in words, the test), in the order of the step."""

from typing import Any

from .advantages import ADVANTAGE_MEAN, ADVANTAGE_STD, WHITEN
from .aggregation import AGGREGATION
from .correction import BOUND, CORRECTION, GATE
from .kl import KL, KL_GRADIENT
from .loss import RATIO
from .surrogate import SURROGATE
from .tasks import REWARDS
from .types import LAYOUTS

OPTIMIZERS = ("adamw", "sgd")
MAX_PROMPTS = 8
MAX_ROWS = 64  # prompts x completions that one recipe may ask for; the trainer is bounded by memory instead
REWARD_KL = ("none", "before", "after")
ALONE = ("zero", "reward")
OLD_OR_SAMPLER, REF_OR_SAMPLER = ("old", "sampler"), ("ref", "sampler")
OR_SAME = ("same", *AGGREGATION)


def number(low: float | int, high: float | int, *, open_low: bool = False):
    def ok(value: Any) -> bool:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        return real and (low < value if open_low else low <= value) and value <= high  # False for NaN and the infinities

    return ok


def whole(low: int, high: int):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def one_of(table):
    return lambda value: isinstance(value, str) and value in table


def texts(value: Any) -> bool:
    texts = isinstance(value, tuple) and 1 <= len(value) <= MAX_PROMPTS
    return texts and all(isinstance(t, str) and t.strip() and len(t) <= 4000 for t in value)


def edits(value: Any) -> bool:
    def ok(edit: Any) -> bool:
        if not (isinstance(edit, tuple) and len(edit) == 3):
            return False
        row, function, reward = edit
        placed = whole(0, MAX_ROWS - 1)(row) and whole(0, 15)(function)
        return placed and (reward is None or number(-1e6, 1e6)(reward))

    return isinstance(value, tuple) and all(map(ok, value))


def names(table, least: int = 1):
    def ok(value: Any) -> bool:
        named = isinstance(value, tuple) and len(value) >= least and all(isinstance(name, str) for name in value)
        return named and len(set(value)) == len(value) and set(value) <= set(table)

    return ok


def weights(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(number(-100, 100), value))


def numbers(count: int, ok):
    return lambda value: isinstance(value, tuple) and len(value) == count and all(map(ok, value))


def yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def listed(table) -> str:
    return ", ".join(table)


RULES = (
    ("model", "a name, folder or hub id", lambda v: isinstance(v, str) and 0 < len(v) <= 500),
    ("prompts", "1 to 8 texts, none empty, each of at most 4000 characters", texts),
    ("group_size", "a whole number from 1 to 64", whole(1, 64)),
    ("max_completion_length", "a whole number from 1 to 1024", whole(1, 1024)),
    ("temperature", "above 0, at most 10 (at 0 there is one answer only: nothing to compare)",
     number(0, 10, open_low=True)),
    ("top_p", "above 0, at most 1 (1 = off)", number(0, 1, open_low=True)),
    ("top_k", "a whole number from 0 (off)", whole(0, 10**6)),
    ("seed", "a whole number from 0 to 2**31 - 1", whole(0, 2**31 - 1)),
    ("reward_functions", f"different names out of {listed(REWARDS)}", names(REWARDS)),
    ("reward_weights", "numbers from -100 to 100", weights),
    ("edited_rewards", "(row, function, finite number or None) triples", edits),
    ("preset", "a name of at most 80 characters", lambda v: isinstance(v, str) and len(v) <= 80),
    # rewards -> advantages
    ("reward_shift", "-1e6 to 1e6", number(-1e6, 1e6)),
    ("reward_scale", "-1e6 to 1e6", number(-1e6, 1e6)),
    ("reward_clip", "0 (off) to 1e6", number(0, 1e6)),
    ("reward_kl", listed(REWARD_KL), one_of(REWARD_KL)),
    ("reward_kl_coef", "0 to 100", number(0, 100)),
    ("reward_kl_estimator", listed(KL), one_of(KL)),
    ("advantage_mean", listed(ADVANTAGE_MEAN), one_of(ADVANTAGE_MEAN)),
    ("advantage_std", listed(ADVANTAGE_STD), one_of(ADVANTAGE_STD)),
    ("advantage_eps", "0 to 1", number(0, 1)),
    ("advantage_alone", listed(ALONE), one_of(ALONE)),
    ("advantage_whiten", listed(WHITEN), one_of(WHITEN)),
    ("advantage_clip", "0 (off) to 1e6", number(0, 1e6)),
    # ratio and surrogate
    ("ratio", listed(RATIO), one_of(RATIO)),
    ("ratio_against", listed(OLD_OR_SAMPLER), one_of(OLD_OR_SAMPLER)),
    ("log_ratio_bound", "above 0, at most 80 (exp of 88.7 overflows float32)", number(0, 80, open_low=True)),
    ("surrogate", listed(SURROGATE), one_of(SURROGATE)),
    ("clip_low", "0 to 1 (0 = the ratio may not fall at all)", number(0, 1)),
    ("clip_high", "-1 to 100 (0 = the ratio may not rise at all)", number(-1, 100)),
    ("dual_clip", "above 1, at most 1e9", number(1, 1e9, open_low=True)),
    ("sapo_temperatures", "two numbers above 0, at most 100", numbers(2, number(0, 100, open_low=True))),
    ("vespo_shape", "four numbers from 0.0001 to 100", numbers(4, number(1e-4, 100))),
    ("quadratic_coef", "0 to 100", number(0, 100)),
    ("cov_fraction", "above 0, at most 1", number(0, 1, open_low=True)),
    ("cov_bounds", "two numbers from -1e6 to 1e6", numbers(2, number(-1e6, 1e6))),
    ("cov_coef", "0 to 1000", number(0, 1000)),
    ("cov_seed", "a whole number from 0 to 2**31 - 1", whole(0, 2**31 - 1)),
    # corrections and gates
    ("correction", listed(CORRECTION), one_of(CORRECTION)),
    ("correction_bound", listed(BOUND), one_of(BOUND)),
    ("correction_low", "0 to 1e6", number(0, 1e6)),
    ("correction_high", "0 (off) to 1e6", number(0, 1e6)),
    ("gates", f"none or different names out of {listed(GATE)}", names(GATE, least=0)),
    ("off_policy_threshold", "0 to 100", number(0, 100)),
    ("entropy_quantile", "above 0, at most 1", number(0, 1, open_low=True)),
    ("mask_truncated", "true or false", yes_or_no),
    # KL, entropy, aggregation
    ("beta", "0 to 100", number(0, 100)),
    ("kl_estimator", listed(KL), one_of(KL)),
    ("kl_against", listed(REF_OR_SAMPLER), one_of(REF_OR_SAMPLER)),
    ("kl_gradient", listed(KL_GRADIENT), one_of(KL_GRADIENT)),
    ("kl_input_bound", "above 0, at most 80", number(0, 80, open_low=True)),
    ("kl_output_bound", "0 (off) to 1e6", number(0, 1e6)),
    ("kl_aggregation", listed(OR_SAME), one_of(OR_SAME)),
    ("entropy_coef", "-10 to 10", number(-10, 10)),
    ("entropy_aggregation", listed(OR_SAME), one_of(OR_SAME)),
    ("aggregation", listed(AGGREGATION), one_of(AGGREGATION)),
    ("count_empty_rows", "true or false", yes_or_no),
    ("count_padding", "true or false", yes_or_no),
    # the update
    ("updates", "a whole number from 1 to 8", whole(1, 8)),
    ("learning_rate", "0 to 10", number(0, 10)),
    ("optimizer", listed(OPTIMIZERS), one_of(OPTIMIZERS)),
    ("max_grad_norm", "0 (off) to 1000000", number(0, 1e6)),
    ("layout", listed(LAYOUTS), one_of(LAYOUTS)),
)  # fmt: skip
