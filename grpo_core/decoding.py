"""What makes one more token cheap: a cache with room for it, and linear layers that read few rows well.

Both give the numbers of the plain way up to rounding; `load_policy` proves the whole of it on the model at hand.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

FEW = 16  # rows; beyond, the plain way is as fast
LARGE = 2**24  # parameters; below, the weights stay in the processor's cache and there is nothing to gain


class RoomyLayer(DynamicLayer):
    """One layer's keys and values [B heads S d] with room behind them: a new token is written in place, where `DynamicLayer`
    would copy all that it holds."""

    def __init__(self, layer: DynamicLayer, room: int):
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None  # a prompt has been read
        self.lazy_initialization(keys, values)
        self._held = [self._with_room(keys, room), self._with_room(values, room)]
        self._show(keys.shape[2])

    @staticmethod
    def _with_room(states: Tensor, room: int) -> Tensor:
        return torch.cat([states, states.new_empty(*states.shape[:2], room, states.shape[3])], dim=2)

    def _show(self, length: int) -> None:
        self._length = length
        self.keys, self.values = (held[:, :, :length] for held in self._held)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        start = self._length
        end = start + key_states.shape[2]
        missing = end - self._held[0].shape[2]
        if missing > 0:
            self._held = [self._with_room(held, missing) for held in self._held]
        for held, states in zip(self._held, (key_states, value_states), strict=True):
            held[:, :, start:end] = states
        self._show(end)
        return self._held[0][:, :, :end], self._held[1][:, :, :end]

    def reorder_cache(self, beam_idx: Int[Tensor, " M"]) -> None:
        self._held = [held.index_select(0, beam_idx) for held in self._held]
        self._show(self._length)


def make_room(cache, tokens: int) -> None:
    """Room for so many tokens in every plain layer of a cache, in place; other kinds of layers are left as they are."""
    if isinstance(cache, DynamicCache):
        cache.layers = [RoomyLayer(layer, tokens) if type(layer) is DynamicLayer else layer for layer in cache.layers]


class FewRowsLinear(torch.nn.Linear):
    """A linear layer that takes its weight as the left factor where a few rows come without a gradient, as in sampling on a
    CPU: up to twice as fast there, since the product would else copy the weight first."""

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        rows = input.numel() // input.shape[-1]
        if rows > FEW or torch.is_grad_enabled() or input.device.type != "cpu":
            return super().forward(input)
        flat = input.reshape(rows, -1).T
        out = self.weight @ flat if self.bias is None else torch.addmm(self.bias.unsqueeze(1), self.weight, flat)
        return out.T.contiguous().view(*input.shape[:-1], -1)  # attention's fast path reads contiguous heads only


def read_few_rows_well(model: torch.nn.Module) -> None:
    """Plain linear layers of a large model become `FewRowsLinear`, in place; weights and their names stay."""
    if sum(p.numel() for p in model.parameters()) >= LARGE:
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = FewRowsLinear
