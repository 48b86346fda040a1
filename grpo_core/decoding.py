"""What makes one more token cheap on a CPU: a cache with room for it, and weights laid out for a few rows,
those that read the same input as one.

Both give the numbers of the plain way up to rounding; `load_policy` proves the whole of it on the model at hand.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

FEW = 128  # rows; beyond, the plain way is as fast
LARGE = 2**24  # parameters; below, the weights stay in the processor's cache and there is nothing to gain
WORTH = 24  # tokens to be sampled; laying out takes as long as it spares in about ten


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


# ---- weights for a few rows ------------------------------------------------------------------------------------------------
class Laid:
    """Weights of linear layers that read the same input, laid out as one in the precision of their product: one call
    multiplies them all.

    Copied or saved with its layers it becomes None: the copy's weights may move on, and their layout would not.
    """

    def __init__(self, layers: Sequence["FewRowsLinear"], dtype: torch.dtype):
        biases = [layer.bias.detach().to(dtype) for layer in layers if layer.bias is not None]
        weights = [layer.weight.detach().to(dtype) for layer in layers]
        self.dtype = dtype
        self._sizes = [layer.out_features for layer in layers]
        self._bias = torch.cat(biases) if biases else None
        together = weights[0] if len(weights) == 1 else torch.cat(weights)  # a head is large: not copied for nothing
        self._weight = torch.ops.mkldnn._reorder_linear_weight(together, None)
        self._last: tuple[Tensor | None, tuple[Tensor, ...]] = None, ()  # set as one: another thread may sample beside this one

    def product(self, input: Tensor, place: int) -> Tensor:
        """Of the layer at this place; what its neighbours will ask for with the same tensor is kept until then."""
        if len(self._sizes) == 1:
            return self._multiplied(input)
        seen, products = self._last
        if seen is not input:
            products = self._multiplied(input).split(self._sizes, dim=-1)
            self._last = input, products
        return products[place]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()

    def _multiplied(self, input: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(input.to(self.dtype), self._weight, self._bias, "none", [], "")


_USERS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()
_LOCK = threading.Lock()


class FewRowsLinear(torch.nn.Linear):
    """A linear layer that reads its weight as `weights_for_few_rows` has laid it out. torch's plain product copies the weight
    first where rows are few: it takes twice as long as this for 8 rows."""

    reads: int | None = None  # the same number as in the layers that read the very same input (`noting_inputs`)
    laid: Laid | None = None
    place: int = 0  # in it

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        laid = self.laid
        if laid is None or torch.is_grad_enabled() or input.numel() > FEW * self.in_features:
            return super().forward(input)
        return laid.product(input, self.place) if product_dtype(input) == laid.dtype else super().forward(input)


def product_dtype(tensor: Tensor) -> torch.dtype:
    """What a tensor on the CPU is in while it is multiplied: autocast leaves float64 alone."""
    if torch.is_autocast_enabled("cpu") and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype("cpu")
    return tensor.dtype


def read_few_rows_well(model: torch.nn.Module) -> None:
    """Plain linear layers of a large model become `FewRowsLinear`, in place; weights and their names stay."""
    if sum(p.numel() for p in model.parameters()) >= LARGE and lays_out(torch.float32):
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = FewRowsLinear


@contextmanager
def noting_inputs(model: torch.nn.Module) -> Iterator[None]:
    """Around one forward pass: layers that are handed the same tensor (queries, keys and values, say) get one number."""
    inputs: list[Tensor] = []  # all of them alive, so that none takes another's identity
    places: dict[int, int] = {}

    def note(layer: FewRowsLinear, args: tuple[Tensor, ...]) -> None:
        if args:
            inputs.append(args[0])
            layer.reads = places.setdefault(id(args[0]), len(places))

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, FewRowsLinear)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def weights_for_few_rows(model: torch.nn.Module, tokens: int) -> Iterator[None]:
    """Within it the weights must stay as they are; they are held twice. Nothing is done where too few tokens are to come."""
    layers = [layer for layer in model.modules() if isinstance(layer, FewRowsLinear) and _fits(layer.weight)]
    if tokens < WORTH or not layers:
        yield
        return
    with _LOCK:  # where several threads sample from one model, the first lays out and the last clears away
        _USERS[model] = _USERS.get(model, 0) + 1
        for together in _by_input([layer for layer in layers if layer.laid is None]):
            laid = Laid(together, product_dtype(together[0].weight))
            for place, layer in enumerate(together):
                layer.place, layer.laid = place, laid
    try:
        yield
    finally:
        with _LOCK:
            _USERS[model] -= 1
            if not _USERS[model]:
                for layer in layers:
                    layer.laid = None


def _by_input(layers: Sequence[FewRowsLinear]) -> list[list[FewRowsLinear]]:
    """Those that one product can serve, together."""
    found: dict[object, list[FewRowsLinear]] = {}
    for layer in layers:
        key = (layer.reads, layer.bias is None, layer.weight.dtype) if layer.reads is not None else layer
        found.setdefault(key, []).append(layer)
    return list(found.values())


def _fits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and type(weight.data) is Tensor and lays_out(product_dtype(weight))


@cache
def lays_out(dtype: torch.dtype) -> bool:
    """Whether this torch has oneDNN's layouts, and this processor such products. The layouts are what torch's own compiler
    uses, and have no public name."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    weight, rows, sums = torch.arange(12.0).view(3, 4).to(dtype), torch.ones(2, 4, dtype=dtype), [6.0, 22.0, 38.0]
    try:
        layout = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        found = torch.ops.mkldnn._linear_pointwise(rows, layout, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return found.tolist() == [sums, sums]
