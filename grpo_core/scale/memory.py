"""Bytes: what a process holds, and what sampling and scoring put on top. Sizes are those of a decoder with RMS norms, a gated
MLP and sdpa attention (Llama, Qwen, Mistral and their like)."""

from dataclasses import dataclass

import torch

from ..decoding import LARGE, WORTH, lays_out
from ..logprobs import CHUNK_ELEMENTS
from ..train_config import TrainConfig
from ..trainer import needs_reference
from .shape import Parts, Reading, Shape, is_packed, is_sharded

SCORE_CELL = 13  # bytes of a cell [token, vocabulary] while it is scored: log-softmax, mask, exp and product of the entropy
SAMPLE_CELL = 17  # bytes of a cell [row, vocabulary] while it is sampled: logits, log-probs, probabilities twice, a check
NUMBERS = {4: torch.float32, 2: torch.bfloat16}  # what a number in the products is, by its bytes
BUCKET = 50_000_000  # numbers that DeepSpeed sums over the processes, or fetches ahead, at a time


@dataclass(frozen=True)
class Held(Parts):
    """Bytes that a process holds from the first step to the last."""

    weights: int
    adapters: int
    gradients: int  # they stay until the next update
    optimizer: int
    reference: int
    buckets: int  # a second copy of the gradients, for the sum over processes; with DeepSpeed of so many numbers at a time
    master: int  # DeepSpeed steps in a copy of the share, in fp32


@dataclass(frozen=True)
class Sampling(Parts):
    """Bytes on top while completions are sampled: all rows of the process at once."""

    whole: int  # all weights, where each process holds a share
    casts: int  # weights in bf16 under autocast
    layout: int  # weights once more, laid out for a few rows (`decoding`), where this machine has such products
    cache: int  # keys and values at their full length, one layer's twice
    logits: int  # or the prompts' states, where those are more


@dataclass(frozen=True)
class Scoring(Parts):
    """Bytes on top while one micro-batch is scored and differentiated."""

    layers: int  # weights and gradients of the layers at hand, where each process holds a share
    casts: int
    activations: int  # kept for backward
    masks: int  # who sees whom
    logits: int  # a chunk of at most CHUNK_ELEMENTS, or gradients inside a layer, where those are more
    making: int  # the largest gradient, before it is added to what is there


def sizes(config: TrainConfig) -> tuple[int, int]:
    """Bytes of a weight, and of a number in the products."""
    weight = 4 if config.dtype == "float32" else 2
    return weight, 2 if config.autocast else weight


def held_by(shape: Shape, config: TrainConfig, processes: int) -> Held:
    whole, zero = is_sharded(config, processes), config.sharding.startswith("zero")
    share = processes if whole else 1  # of the weights
    gradients, states = (processes if whole or config.sharding == "zero2" else 1), (processes if whole or zero else 1)
    weights = sizes(config)[0] * shape.parameters
    trained = 4 * shape.adapters if config.lora_rank else weights  # PEFT keeps adapters in fp32
    return Held(
        weights=weights // share, adapters=4 * shape.adapters, gradients=trained // gradients,
        optimizer=2 * trained // states + 4 * (1 if zero else shape.tensors) if config.optimizer == "adamw" else 0,
        reference=weights // share if needs_reference(config) and not config.lora_rank else 0,
        buckets=min(trained, (8 if whole else 4) * BUCKET) if zero else trained if processes > share else 0,
        master=trained // states if zero else 0,
    )  # fmt: skip


# ---- scoring ---------------------------------------------------------------------------------------------------------------
def kept_by_layer(shape: Shape, config: TrainConfig) -> int:
    """Bytes that one layer keeps of one token for backward."""
    (weight, number), lora = sizes(config), config.lora_rank > 0
    norms = 2 * ((4 if lora else 4 + weight) * shape.width + 4)  # in fp32; what a frozen weight multiplies is not needed
    if weight != number or (lora and weight == 2):  # each matrix reads a copy of its own, in another precision
        copies = 5 * shape.width + shape.inner + (shape.queries if lora else 0)
        inputs = copies * (2 if config.autocast else 4)
    else:
        inputs = (2 * shape.width + shape.inner) * weight
    low = 7 * config.lora_rank * (2 if config.autocast else 4)
    return norms + inputs + low + number * (4 * shape.queries + 3 * shape.inner) + 4 * shape.heads


def kept_in_layer(shape: Shape, config: TrainConfig, reading: Reading) -> int:
    """Bytes that one layer keeps for backward: of each token, and a prompt's keys and values once more for each block."""
    more = 2 * sizes(config)[1] * shape.queries * (reading.keys - reading.tokens)
    return kept_by_layer(shape, config) * reading.tokens + more


def activations_of(shape: Shape, config: TrainConfig, reading: Reading) -> int:
    """Bytes that the body keeps for backward. With checkpointing: each layer's input, and one layer's all."""
    (weight, number), layer = sizes(config), kept_in_layer(shape, config, reading)
    again = config.gradient_checkpointing
    layers = shape.layers * shape.width * weight * reading.tokens + layer if again else shape.layers * layer
    last = 4 * shape.width * reading.tokens  # the last norm's, and what the head reads
    last += 0 if config.lora_rank else shape.width * (weight * reading.tokens + number * reading.scored)
    return layers + last


def masks_of(shape: Shape, config: TrainConfig, reading: Reading) -> int:
    """Bytes of who sees whom: yes or no, and as numbers to add, where need be a copy for each layer that keeps one."""
    weight, number = sizes(config)
    own = number * (1 if config.gradient_checkpointing else shape.layers)
    once = 1 + weight if is_packed(config) else 1
    each = own if weight != number or not is_packed(config) else 0
    if reading.seen < reading.squares:
        return once * reading.squares + (weight + each) * reading.seen
    return (once + each) * reading.squares


def scoring_of(shape: Shape, config: TrainConfig, reading: Reading, processes: int) -> Scoring:
    (weight, number), lora = sizes(config), config.lora_rank > 0
    outside = shape.parameters - shape.layers * shape.layer
    casts = 2 * (shape.head + (shape.layer if lora and config.gradient_checkpointing else shape.linear + shape.adapters))
    cells = min(CHUNK_ELEMENTS, reading.scored * shape.vocabulary)
    return Scoring(
        layers=weight * (4 * shape.layer + 2 * outside) if is_sharded(config, processes) else 0,
        casts=casts if weight != number else 0,
        activations=activations_of(shape, config, reading), masks=masks_of(shape, config, reading),
        logits=max(SCORE_CELL * cells, number * reading.tokens * shape.passing),
        making=(4 if lora else weight) * shape.largest,
    )  # fmt: skip


def proof_of(shape: Shape, config: TrainConfig, reading: Reading) -> int:
    """`choose_scoring` in the first step: all rows padded, without a graph, in the weights' own precision."""
    if config.scoring == "padded":
        return 0
    weight, cells = sizes(config)[0], min(CHUNK_ELEMENTS, reading.scored * shape.vocabulary)
    states = weight * reading.tokens * shape.passing + (1 + weight) * reading.squares
    return max(states, SCORE_CELL * cells)


# ---- sampling --------------------------------------------------------------------------------------------------------------
def cache_of_token(shape: Shape, config: TrainConfig) -> int:
    """Bytes of keys and values; under autocast rotary positions turn the keys into fp32."""
    weight, number = sizes(config)
    return (weight + number) * shape.keys * shape.layers


def sampling_of(
    shape: Shape, config: TrainConfig, prompt: int, completion: int, rows: int, processes: int, device: str
) -> Sampling:
    weight, number = sizes(config)
    cache = cache_of_token(shape, config) * rows * (prompt + completion - 1)
    casts = 2 * (max(shape.layer, shape.head) if config.lora_rank else shape.linear + shape.head)
    prompts = -(-rows // config.group_size) * prompt * number * shape.passing
    laid_out = device == "cpu" and config.max_completion_length >= WORTH and lays_out(NUMBERS[number])
    return Sampling(
        whole=weight * shape.parameters if is_sharded(config, processes) else 0, casts=casts if weight != number else 0,
        layout=number * (shape.linear + shape.head) if laid_out and shape.parameters >= LARGE else 0,
        cache=cache + cache // shape.layers, logits=max(SAMPLE_CELL * rows * shape.vocabulary, prompts),
    )  # fmt: skip
