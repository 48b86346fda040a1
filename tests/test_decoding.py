"""A cache with room is the plain cache; a layer for few rows is the plain layer."""

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_core import decoding
from grpo_core.decoding import FEW, WORTH, FewRowsLinear, RoomyLayer, make_room, read_few_rows_well, weights_for_few_rows


def states(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(3, 2, tokens, 4, generator=random) for _ in range(2))
    return keys, values


@pytest.mark.parametrize("room", [0, 2, 50])
def test_a_roomy_cache_holds_what_the_plain_one_holds(room):
    plain, roomy = DynamicCache(), DynamicCache()
    for cache in (plain, roomy):
        cache.update(*states(5, 0), 0)
    make_room(roomy, room)
    assert type(roomy.layers[0]) is RoomyLayer
    for step, rows in enumerate(([0, 2, 2], [1, 0, 2], [2, 1, 0]), start=1):
        for cache in (plain, roomy):
            cache.reorder_cache(torch.tensor(rows))
            seen = cache.update(*states(step, step), 0)
            assert all(torch.equal(a, b) for a, b in zip(seen, (cache.layers[0].keys, cache.layers[0].values), strict=True))
        assert torch.equal(plain.layers[0].keys, roomy.layers[0].keys)
        assert torch.equal(plain.layers[0].values, roomy.layers[0].values)
        assert plain.get_seq_length() == roomy.get_seq_length() == 5 + step * (step + 1) // 2
        assert plain.get_mask_sizes(1, 0) == roomy.get_mask_sizes(1, 0)


def test_a_token_that_has_room_copies_nothing():
    cache = DynamicCache()
    cache.update(*states(5, 0), 0)
    make_room(cache, 2)
    begins = cache.layers[0].keys.data_ptr()
    for seed in (1, 2):
        cache.update(*states(1, seed), 0)
        assert cache.layers[0].keys.data_ptr() == begins
    cache.update(*states(1, 3), 0)  # a third has none
    assert cache.layers[0].keys.data_ptr() != begins


def test_other_layers_of_a_cache_stay_as_they_are():
    class Window(DynamicLayer):
        pass

    cache = DynamicCache()
    cache.layers = [Window()]
    make_room(cache, 3)
    assert type(cache.layers[0]) is Window
    make_room(None, 3)  # a model without a cache that is known


def few_rows_layer(bias: bool = False) -> FewRowsLinear:
    torch.manual_seed(0)
    layer = torch.nn.Linear(12, 7, bias=bias)
    layer.__class__ = FewRowsLinear
    return layer


@pytest.fixture
def products(monkeypatch) -> list[int]:
    """Rows of each product with a weight that was laid out."""
    seen, original = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda rows, *rest: seen.append(rows[..., 0].numel()) or original(rows, *rest)
    )
    return seen


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 12), (FEW, 12), (2, 3, 12)])
def test_few_rows_give_the_plain_products(bias, shape, products):
    layer, rows = few_rows_layer(bias), torch.randn(*shape)
    expected = layer(rows)
    with weights_for_few_rows(layer, WORTH), torch.no_grad():
        found = layer(rows)
    assert products == [rows[..., 0].numel()]
    assert found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_elsewhere_the_layer_is_the_plain_one(products):
    layer, rows = few_rows_layer(), torch.randn(3, 12)
    plain = torch.nn.functional.linear(rows, layer.weight)
    with weights_for_few_rows(layer, WORTH):
        assert torch.equal(layer(rows), plain)  # a gradient may be asked for
        with torch.no_grad():
            many = torch.randn(FEW + 1, 12)
            assert torch.equal(layer(many), torch.nn.functional.linear(many, layer.weight))
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(rows).dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(layer(rows), plain)
        with weights_for_few_rows(layer, WORTH - 1):  # too little to come
            assert torch.equal(layer(rows), plain)
        with weights_for_few_rows(layer.double(), WORTH):
            assert layer(rows.double()).dtype == torch.float64
    assert products == []


def test_a_layout_ends_with_its_last_user_and_never_outlives_its_weights(products):
    layer, rows = few_rows_layer(), torch.randn(3, 12)
    with torch.no_grad():
        with weights_for_few_rows(layer, WORTH):
            with pytest.raises(ZeroDivisionError), weights_for_few_rows(layer, WORTH):
                raise ZeroDivisionError
            layer(rows)
            twin = copy.deepcopy(layer)
            twin.weight += 1.0  # trained on
            assert torch.equal(twin(rows), torch.nn.functional.linear(rows, twin.weight))
        layer.weight += 1.0
        assert torch.equal(layer(rows), torch.nn.functional.linear(rows, layer.weight))
        with weights_for_few_rows(layer, WORTH):
            torch.testing.assert_close(layer(rows), torch.nn.functional.linear(rows, layer.weight), rtol=1e-6, atol=1e-6)
    assert products == [3, 3] and layer not in decoding._LAYOUTS


@pytest.mark.parametrize("able", [True, False])
def test_only_large_models_change_and_their_weights_keep_their_names(monkeypatch, able):
    monkeypatch.setattr(decoding, "lays_out", lambda: able)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Embedding(4, 8))
    names = list(model.state_dict())
    read_few_rows_well(model)
    assert type(model[0]) is torch.nn.Linear
    monkeypatch.setattr(decoding, "LARGE", 100)
    read_few_rows_well(model)
    assert type(model[0]) is (FewRowsLinear if able else torch.nn.Linear) and type(model[1]) is torch.nn.Embedding
    assert list(model.state_dict()) == names


def test_this_torch_has_the_layouts():
    assert decoding.lays_out()
