"""What the formulas read: the model, counted on the meta device, and the tokens of a step, packed as a run packs them."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ..blocks import BLOCK_COST, blocks_of
from ..packing import Row, pack_cost, plan
from ..splitting import split_rows
from ..train_config import TrainConfig


@dataclass(frozen=True)
class Shape:
    """Numbers of parameters, and widths in numbers per token."""

    parameters: int  # without adapters; tied embedding and head count once
    adapters: int
    linear: int  # those of the body's matrices: 2 FLOP each per token
    layer: int  # of one layer
    largest: int  # of the largest tensor that is trained
    tensors: int  # that are trained
    layers: int
    width: int
    heads: int
    queries: int  # heads x size of a head
    keys: int
    inner: int  # of the MLP
    vocabulary: int

    @property
    def head(self) -> int:
        """Numbers of the output head."""
        return self.vocabulary * self.width

    @property
    def passing(self) -> int:
        """Numbers of a token that a layer needs in passing: the MLP's three, and the stream before and behind it."""
        return 3 * self.inner + 2 * self.width


class Parts:
    """Something whose fields add up."""

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))  # pyright: ignore[reportArgumentType]


def on_meta(model_config: Any, config: TrainConfig) -> Any:
    """The model with its adapters, as large as it is and without any memory."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(model_config, dtype=getattr(torch, config.dtype), trust_remote_code=False)
        if config.lora_rank:
            from peft import LoraConfig, get_peft_model

            targets = config.lora_targets[0] if config.lora_targets == ("all-linear",) else list(config.lora_targets)
            lora = LoraConfig(r=config.lora_rank, target_modules=targets, task_type="CAUSAL_LM")  # pyright: ignore
            model = get_peft_model(model, lora)
    return model


def shape_of(model_config: Any, config: TrainConfig) -> Shape:
    model, text = on_meta(model_config, config), model_config.get_text_config()
    head = model.get_output_embeddings()
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    adapters = sum(trained) if config.lora_rank else 0
    layer = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == text.num_hidden_layers)[0]
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()) - adapters, adapters=adapters,
        linear=sum(w.numel() for w in matrices) - adapters, layer=sum(p.numel() for p in layer.parameters()),
        largest=max(trained), tensors=len(trained), layers=text.num_hidden_layers, width=text.hidden_size,
        heads=text.num_attention_heads, queries=text.num_attention_heads * size,
        keys=(getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * size,
        inner=text.intermediate_size, vocabulary=head.weight.shape[0],
    )  # fmt: skip


# ---- what is read ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """What is read at a time."""

    rows: int
    tokens: int
    squares: int  # cells of the masks over rows or packs: their lengths squared
    scored: int
    seen: int  # pairs of a query and a key that attention multiplies
    keys: int  # that it reads: in blocks, a prompt's once for each


def attention_of(packs: list[list[tuple[int, list[int]]]], shape: Shape, device: str) -> tuple[int, int, int, int]:
    """Tokens, squares, seen and keys of packs of (prompt, completions), in blocks where those are cheaper."""
    tokens = squares = seen = keys = 0
    for pack in packs:
        size = sum(prompt + sum(completions) for prompt, completions in pack)
        blocks = blocks_of(pack, shape.width, BLOCK_COST.get(device, BLOCK_COST["cuda"]))
        tokens, squares = tokens + size, squares + size**2
        seen += sum((block.end - block.start) * block.keys for block in blocks) if blocks else size**2
        keys += sum(block.keys for block in blocks) if blocks else size
    return tokens, squares, seen, keys


def is_packed(config: TrainConfig) -> bool:
    """In bf16 a packed group's log-probs differ from the padded ones by more than is allowed: "auto" pads there."""
    return config.scoring == "packed" or (config.scoring == "auto" and config.dtype == "float32")


def is_sharded(config: TrainConfig, processes: int) -> bool:
    return config.sharding == "zero3" or (config.sharding == "shard" and processes > 1)


def readings_of(
    shape: Shape, config: TrainConfig, prompt: int, completion: int, processes: int, device: str
) -> tuple[Reading, ...]:
    """The micro-batches of one pass over a process's rows, in packs as `packing.plan` makes them; one where weights are
    shared out."""
    rows = config.prompts_per_step * config.group_size // processes
    micro_batches = [part for parts in split_rows(rows, config.minibatches, config.micro_batch_rows) for part in parts]
    cost = pack_cost(shape.linear + shape.adapters, shape.width, shape.layers, device)
    token, found = torch.zeros(completion, dtype=torch.long), []
    for micro_batch in micro_batches:
        groups, count = Counter((micro_batch // config.group_size).tolist()), len(micro_batch)
        if not is_packed(config):
            row = prompt + completion
            found.append(Reading(count, count * row, count * row**2, count * completion, count * row**2, count * row))
            continue
        behind = {(number,) * prompt: [Row(row, token, token) for row in range(n)] for number, n in groups.items()}
        planned = [list(behind.items())] if is_sharded(config, processes) else plan(behind, cost)
        packs = [[(prompt, [completion - 1] * len(rows)) for _, rows in parts] for parts in planned]
        tokens, squares, seen, keys = attention_of(packs, shape, device)
        found.append(Reading(count, tokens, squares, count * completion, seen, keys))
    return tuple(found)
