"""FLOP of one process in one step; a multiply-add is two. Attention is what is multiplied: a mask spares nothing, blocks do."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..logprobs import CHUNK_ELEMENTS
from ..train_config import TrainConfig
from ..trainer import needs_reference
from .shape import Parts, Reading, Shape


@dataclass(frozen=True)
class Flop(Parts):
    """FLOP of one process in one step."""

    prefill: int  # each prompt once
    decode: int
    reference: int
    old: int  # the pass that fixes old log-probs, where minibatches or a KL in the reward need one
    training: int  # forward, backward, and what is computed again


def forward(shape: Shape, tokens: int, seen: int, scored: int) -> int:
    return 2 * (shape.linear + shape.adapters) * tokens + 4 * shape.layers * shape.queries * seen + 2 * shape.head * scored


def training(shape: Shape, config: TrainConfig, reading: Reading) -> int:
    """Forward and backward of a micro-batch. Frozen weights have no gradient of their own; attention's backward takes 2.5
    times its forward, whose weights it makes again."""
    lora, tokens, attention = config.lora_rank > 0, reading.tokens, 4 * shape.layers * shape.queries * reading.seen
    head = 2 * shape.head * reading.scored
    passes = 2 if lora else 3
    flop = passes * (2 * shape.linear * tokens + head) + 6 * shape.adapters * tokens + 7 * attention // 2
    if reading.scored > max(1, CHUNK_ELEMENTS // shape.vocabulary):
        flop += head  # a chunk's logits are made again
    if config.gradient_checkpointing:  # the layers too, but for the last product of each, which nothing needs
        needless = 0 if lora else shape.layers * shape.inner * shape.width
        flop += 2 * (shape.linear + shape.adapters - needless) * tokens + attention
    return flop


def seen_by(prompt: int, completion: int) -> int:
    """Places that the tokens of a completion look at while it is sampled; the first one is the prompt's doing."""
    return (completion - 1) * prompt + (completion - 1) * completion // 2


def flop_of(shape: Shape, config: TrainConfig, readings: Iterable[Reading], prompt: int, completion: int) -> Flop:
    readings = list(readings)
    rows, columns = sum(reading.rows for reading in readings), completion - 1
    prompts = -(-rows // config.group_size)
    once = sum(forward(shape, reading.tokens, reading.seen, reading.scored) for reading in readings)
    return Flop(
        prefill=forward(shape, prompts * prompt, prompts * prompt**2, rows),
        decode=forward(shape, rows * columns, rows * seen_by(prompt, completion), rows * columns),
        reference=once if needs_reference(config) else 0,
        old=once if config.minibatches > 1 or config.reward_kl != "none" else 0,
        training=config.updates * sum(training(shape, config, reading) for reading in readings),
    )  # fmt: skip
