"""A cache with room is the plain cache; a layer for few rows is the plain layer."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders import byte_tokenizer
from transformers import AutoModelForCausalLM, DynamicCache, GPTNeoXConfig, LlamaConfig, Qwen2Config
from transformers.cache_utils import DynamicLayer

from grpo_core import Recipe, decoding, load_policy, sample
from grpo_core.decoding import (
    FEW,
    WORTH,
    FewRowsLinear,
    Laid,
    RoomyLayer,
    make_room,
    noting_inputs,
    read_few_rows_well,
    weights_for_few_rows,
)


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
    seen, original = [], Laid._multiplied
    monkeypatch.setattr(Laid, "_multiplied", lambda laid, rows: seen.append(rows[..., 0].numel()) or original(laid, rows))
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


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_products_in_bfloat16_read_weights_laid_out_in_bfloat16(weights, bias, products):
    """Under autocast, or because the weights are. A processor without such products has no such layout: plain ones then."""
    layer, rows = few_rows_layer(bias).to(weights), torch.randn(3, 12).to(weights)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        expected = layer(rows)
        with weights_for_few_rows(layer, WORTH):
            found = layer(rows)
            with torch.autocast("cpu", enabled=False):  # one layout is not read in another precision
                assert layer(rows).dtype == weights
    assert len(products) == ((1 if weights == torch.float32 else 2) if decoding.lays_out(torch.bfloat16) else 0)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


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
            assert twin.laid is None and torch.equal(twin(rows), torch.nn.functional.linear(rows, twin.weight))
        layer.weight += 1.0
        assert torch.equal(layer(rows), torch.nn.functional.linear(rows, layer.weight))
        with weights_for_few_rows(layer, WORTH):
            torch.testing.assert_close(layer(rows), torch.nn.functional.linear(rows, layer.weight), rtol=1e-6, atol=1e-6)
    assert products == [3, 3] and layer.laid is None


class Mixer(torch.nn.Module):
    """Two layers that read the input, one of them twice; one that reads it but has a bias; one that reads what they made."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.d = (torch.nn.Linear(12, size, bias=False) for size in (5, 12, 4))
        self.c = torch.nn.Linear(12, 6)
        for layer in self.children():
            layer.__class__ = FewRowsLinear

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a, b = self.a(x), self.b(x)
        return [a, b, self.c(x), self.d(b.relu()), self.a(x)]


def test_layers_that_read_the_same_input_are_multiplied_as_one(products):
    model, rows = Mixer(), torch.randn(3, 12)
    with torch.no_grad():
        with noting_inputs(model):
            expected = model(rows)
        numbers = [layer.reads for layer in (model.a, model.b, model.c, model.d)]
        assert numbers[0] == numbers[1] == numbers[2] != numbers[3]
        with weights_for_few_rows(model, WORTH):
            for found, wanted in zip(model(rows), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
            assert len(products) == 3  # a with b, c with its bias, d
            others = torch.randn(2, 12)
            torch.testing.assert_close(
                model.b(others), torch.nn.functional.linear(others, model.b.weight), rtol=1e-6, atol=1e-6
            )
            torch.testing.assert_close(model.a(rows), expected[0], rtol=1e-6, atol=1e-6)  # not what others left behind
            twin = copy.deepcopy(model)
            assert twin.a.laid is None and twin.a.reads == model.a.reads


def test_two_threads_read_one_layout_each_its_own_rows():
    model = Mixer()
    inputs = [torch.randn(rows, 12) for rows in (1, 2, 3, 4)]
    with torch.no_grad():
        with noting_inputs(model):
            expected = [model(rows) for rows in inputs]

    def run(place: int) -> bool:
        with torch.no_grad():
            made = [model(inputs[place]) for _ in range(200)]
        return all(torch.allclose(f, w, atol=1e-6) for one in made for f, w in zip(one, expected[place], strict=True))

    with weights_for_few_rows(model, WORTH), ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(4)))


def test_a_layer_that_is_called_by_keyword_has_no_number():
    layer = few_rows_layer()
    with noting_inputs(layer), torch.no_grad():
        layer(input=torch.randn(2, 12))
    assert layer.reads is None


SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 2}


@pytest.mark.parametrize("config", [LlamaConfig(**SIZES, **GROUPED), Qwen2Config(**SIZES, **GROUPED), GPTNeoXConfig(**SIZES)])
def test_a_model_samples_the_same_with_its_layouts(config, tmp_path, monkeypatch, products):
    """Queries, keys and values are one product, gate and up another: four a layer instead of seven. GPT-NeoX has its four."""
    tokenizer = byte_tokenizer()
    config.vocab_size, config.initializer_range = len(tokenizer), 0.3
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    recipe = Recipe(prompts=("1 + 2 =",), group_size=3, max_completion_length=WORTH)
    plain = sample(load_policy(str(tmp_path)), recipe.prompts, recipe)
    assert products == []
    monkeypatch.setattr(decoding, "LARGE", 1)
    policy = load_policy(str(tmp_path))
    products.clear()
    rollout = sample(policy, recipe.prompts, recipe)
    assert torch.equal(rollout.completion_ids, plain.completion_ids)
    torch.testing.assert_close(rollout.sampler_logprobs, plain.sampler_logprobs, rtol=1e-4, atol=1e-4)
    assert len(products) == (4 * 2 + 1) * plain.completion_ids.shape[1]  # the head is the ninth of each pass


@pytest.mark.parametrize("able", [True, False])
def test_only_large_models_change_and_their_weights_keep_their_names(monkeypatch, able):
    monkeypatch.setattr(decoding, "lays_out", lambda dtype: able)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Embedding(4, 8))
    names = list(model.state_dict())
    read_few_rows_well(model)
    assert type(model[0]) is torch.nn.Linear
    monkeypatch.setattr(decoding, "LARGE", 100)
    read_few_rows_well(model)
    assert type(model[0]) is (FewRowsLinear if able else torch.nn.Linear) and type(model[1]) is torch.nn.Embedding
    assert list(model.state_dict()) == names


def test_this_torch_has_the_layouts():
    assert decoding.lays_out(torch.float32) and not decoding.lays_out(torch.float64)
