"""A cache with room is the plain cache; a layer for few rows is the plain layer."""

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_core.decoding import FEW, FewRowsLinear, RoomyLayer, make_room, read_few_rows_well


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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 12), (FEW, 12), (FEW + 1, 12), (2, 3, 12)])
def test_few_rows_give_the_plain_products(bias, shape):
    torch.manual_seed(0)
    plain, rows = torch.nn.Linear(12, 7, bias=bias), torch.randn(*shape)
    few = torch.nn.Linear(12, 7, bias=bias)
    few.load_state_dict(plain.state_dict())
    few.__class__ = FewRowsLinear
    expected = plain(rows)
    assert torch.equal(few(rows), expected)  # with a gradient it is the plain layer
    with torch.no_grad():
        found = few(rows)
    assert found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_only_large_models_change_and_their_weights_keep_their_names(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Embedding(4, 8))
    names = list(model.state_dict())
    read_few_rows_well(model)
    assert type(model[0]) is torch.nn.Linear
    monkeypatch.setattr("grpo_core.decoding.LARGE", 100)
    read_few_rows_well(model)
    assert type(model[0]) is FewRowsLinear and type(model[1]) is torch.nn.Embedding
    assert list(model.state_dict()) == names
