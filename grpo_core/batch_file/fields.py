"""The batch file's names as tables: which axes a field has, what may stand in a cell (in JSON and as a tensor), in `meta`.

Every refusal is one `BadField` line: field, row, what was found, what is allowed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..convention import Convention

FLOAT32_LIMIT = 3.4028235677973362e38  # from here on a finite number rounds to infinity
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class BadField(ValueError):
    """What is wrong with one field; whoever knows the file puts its name in front."""

    def __init__(self, field: str, found: str, allowed: str, row: int | None = None):
        super().__init__(f"{field}{'' if row is None else f', row {row}'}: found {found}, allowed: {allowed}")


def short(value: Any) -> str:
    """A stranger's value in one short line of ASCII."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a whole number of more than 64 bits"
    text = ascii(value[:41] if isinstance(value, str) else value)
    return text if len(text) <= 40 else text[:37] + "..."


# ---- cells: a JSON value -> the number, None where it is refused; a tensor -> (as in memory, where it is allowed) ----------
def is_number(value: Any) -> bool:
    return type(value) in (int, float)  # a bool is no number


def whole(value: Any) -> int | None:
    fits = is_number(value) and (-(2**63) <= value < 2**63 if type(value) is int else abs(value) <= 2**53)
    return int(value) if fits and value == int(value) else None


def flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def number(value: Any) -> float | None:
    if isinstance(value, str):
        return NON_FINITE.get(value)
    refused = not is_number(value) or FLOAT32_LIMIT <= abs(value) != math.inf
    return None if refused else float(value)


def reward(value: Any) -> float | None:
    return math.nan if value is None else number(value)


def wholes_of(tensor: Tensor) -> tuple[Tensor, Tensor]:
    if tensor.is_floating_point():
        exact = tensor.double()
        return exact.nan_to_num().long(), (exact == exact.round()) & (exact.abs() <= 2**53)
    return tensor.long(), _not_bools(tensor)


def _not_bools(tensor: Tensor) -> Tensor:
    return torch.tensor(tensor.dtype != torch.bool).expand(tensor.shape)


def flags_of(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return tensor == 1, (tensor == 0) | (tensor == 1)


def numbers_of(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Half precision becomes fp32, which holds it exactly; fp64 stays."""
    values = tensor if tensor.dtype == torch.float64 else tensor.float()
    return values, _not_bools(tensor)


@dataclass(frozen=True)
class Kind:
    """What one cell of a field holds."""

    allowed: str
    dtype: torch.dtype  # of a field read from JSON
    of_value: Callable[[Any], Any]
    of_tensor: Callable[[Tensor], tuple[Tensor, Tensor]]
    token: bool = False  # padded with the padding id, everything else with 0


COUNT = Kind("whole numbers of at most 64 bits", torch.int64, whole, wholes_of)
ID = Kind(COUNT.allowed, torch.int64, whole, wholes_of, token=True)
MASK = Kind("0 or 1", torch.bool, flag, flags_of)
NUMBER = Kind("numbers in fp32's range, NaN, Infinity, -Infinity", torch.float32, number, numbers_of)
REWARD = Kind(f"null, {NUMBER.allowed}", torch.float32, reward, numbers_of)


@dataclass(frozen=True)
class Field:
    kind: Kind
    axes: tuple[str, ...]  # a letter per axis; alternatives, shortest first. "*" is a width of the field's own
    left: bool = False  # padded on the left

    @property
    def columns(self) -> str:
        """The letter of the second axis where rows may be ragged, else ''."""
        return self.axes[-1][1:2].replace("R", "")

    @property
    def allowed(self) -> str:
        return " or ".join(f"[{' '.join(axes)}]" for axes in self.axes) + f" of {self.kind.allowed}"


FIELDS: Mapping[str, Field] = {
    "input_ids": Field(ID, ("BS",)), "response_mask": Field(MASK, ("BS",)),
    "prompt_ids": Field(ID, ("BP",), left=True), "prompt_mask": Field(MASK, ("BP",), left=True),
    "completion_ids": Field(ID, ("BC",)), "completion_mask": Field(MASK, ("BC",)), "attention_mask": Field(MASK, ("BS",)),
    "position_ids": Field(COUNT, ("BS",)), "prompt_lengths": Field(COUNT, ("B",)),
    "loss_mask": Field(MASK, ("BT",)), "tool_mask": Field(MASK, ("BT",)),
    "group_ids": Field(COUNT, ("B",)), "rewards": Field(REWARD, ("B", "BR")), "reward_weights": Field(NUMBER, ("R",)),
    "advantages": Field(NUMBER, ("B", "BT")), "sequence_weights": Field(NUMBER, ("B",)),
    "policy_logprobs": Field(NUMBER, ("BT",)), "old_logprobs": Field(NUMBER, ("BT",)),
    "ref_logprobs": Field(NUMBER, ("BT",)), "sampler_logprobs": Field(NUMBER, ("BT",)),
    "entropy": Field(NUMBER, ("BT",)), "logits": Field(NUMBER, ("BSV",)),
    "sampled_ids": Field(ID, ("B*",)), "sampler_prompt_ids": Field(ID, ("B*",), left=True),
}  # fmt: skip
TEXTS: Mapping[str, str] = {"finish_reasons": "B", "reward_names": "R"}  # lists of texts, by axis
IDS: Mapping[str, tuple[str, ...]] = {"sequence": ("input_ids",), "prompt_completion": ("prompt_ids", "completion_ids")}


# ---- meta and reported -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Setting:
    allowed: str
    test: Callable[[Any], bool]


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, dict) and all(key.isascii() and key.isdigit() and _is_text(value[key]) for key in value)


TEXT, WHOLE = Setting("a text", _is_text), Setting("a whole number", _is_whole)
REAL, SWITCH = Setting("a number", is_number), Setting("true or false", lambda value: isinstance(value, bool))
WHOLES = Setting("a list of whole numbers", _list_of(_is_whole))
ROWS = Setting("a list of lists of whole numbers", _list_of(_list_of(_is_whole)))
TOKENS = Setting("an object of id: text", _are_tokens)

_NAMES: Mapping[Setting, str] = {
    TEXT: "framework preset kl_estimator aggregation dtype kl_in advantage_mean advantage_std sampler_logprobs_over",
    WHOLE: "top_k pad_token_id bos_token_id vocab_size num_generations max_prompt_length max_completion_length iteration "
    "updates_since_sampling gradient_accumulation_steps step",
    REAL: "temperature top_p min_p beta clip_low clip_high dual_clip advantage_eps",
    SWITCH: "mask_truncated training_mode",
    WHOLES: "eos_token_ids",
    ROWS: "micro_batches packed_boundaries",
    TOKENS: "tokens",
}
META: Mapping[str, Setting] = {name: setting for setting, names in _NAMES.items() for name in names.split()}
REPORTED: Mapping[str, Setting] = dict.fromkeys(("loss", "kl", "entropy", "clip_fraction", "num_items", "grad_norm"), REAL)
CONVENTION = frozenset(f.name for f in fields(Convention))  # settings that the format has no name for may stand in `meta`
