"""SCALE.md and the configs beside it: every figure that is computed, what fits where, and that each config takes a step."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
from peers import require
from transformers import LlamaConfig, Qwen2Config

from grpo_core.commands.train import Run
from grpo_core.scale import Estimate, estimate
from grpo_core.scale.__main__ import lines, main
from grpo_core.scale.shape import on_meta
from grpo_core.train_config import TrainConfig, from_toml

CORE = Path(__file__).parent.parent / "grpo_core"
PAGE = (CORE / "SCALE.md").read_text(encoding="utf-8")
CONFIGS = sorted(path.name for path in (CORE / "configs").iterdir())
PROMPT, ROOM = 512, 0.9  # tokens of a prompt on GPUs; what of the memory may be planned for


def qwen(width: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int = 152064, tied: bool = False):
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, max_position_embeddings=32768, tie_word_embeddings=tied,
    )  # fmt: skip


def llama(width: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, tied: bool = False):
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, max_position_embeddings=8192, tie_word_embeddings=tied,
    )  # fmt: skip


MODELS = {  # as published: the hub is not asked
    "1.5": qwen(1536, 8960, 28, 12, 2, 151936, True), "3": qwen(2048, 11008, 36, 16, 2, 151936, True),
    "7": qwen(3584, 18944, 28, 28, 4), "14": qwen(5120, 13824, 48, 40, 8), "32": qwen(5120, 27648, 64, 40, 8),
    "70": llama(8192, 28672, 80, 64, 8, 128256), "0.1": llama(576, 1536, 30, 9, 3, 49152, True),
}  # fmt: skip
PLANS = {  # model, prompt, processes, those of a node, device, TFLOP/s, GB/s
    "laptop.toml": ("0.1", 256, 1, 1, "cpu", 0.1, 0.0), "gpu_7b.toml": ("7", PROMPT, 1, 1, "cuda", 300.0, 2000.0),
    "nodes_14b.toml": ("14", PROMPT, 8, 8, "cuda", 300.0, 3000.0),
    "nodes_70b.toml": ("70", PROMPT, 16, 8, "cuda", 300.0, 5000.0),
}  # fmt: skip
LORA = {"dtype": "bfloat16", "lora_rank": 16, "scoring": "padded"}
MIXED = {"autocast": True, "scoring": "packed"}
SHARED = {"sharding": "shard"}
WAYS = {  # rows of the page's second table: processes, settings
    "adapters on bf16, 1 or more": (8, LORA), "every weight, fp32 with autocast, 1": (1, MIXED),
    "every weight, fp32 with autocast, 8 shared out": (8, MIXED | SHARED),
    "every weight, fp32 with autocast, 64 shared out": (64, MIXED | SHARED),
    "every weight, bf16, 8 shared out": (8, {"dtype": "bfloat16", "scoring": "padded"} | SHARED),
    "every weight, bf16, 64 shared out": (64, {"dtype": "bfloat16", "scoring": "padded"} | SHARED),
}  # fmt: skip


def cells(label: str) -> list[str]:
    """The cells behind a label in the page's tables."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


@cache
def planned(name: str) -> Estimate:
    require("peft")
    model, prompt, processes, _, device, *_ = PLANS[name]
    config = from_toml(CORE / "configs" / name)
    return estimate(config, MODELS[model], prompt, config.max_completion_length, processes, device)


def few(value: float) -> str:
    """Two digits at least."""
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def figures(name: str) -> dict[str, str]:
    """What the page says of a config, by the label of the row."""
    model, prompt, processes, of_node, _, tflops, gbs = PLANS[name]
    found, config = planned(name), from_toml(CORE / "configs" / name)
    held, sampling, scoring, flop = found.held, found.sampling, found.scoring, found.flop
    weights = found.host / 5
    numbers = {
        "parameters, B": found.shape.parameters, "held: weights, GB": held.weights,
        "held: the rest, GB": held.total - held.weights,
        "sampling: whole weights and their bf16 copy, GB": sampling.whole + sampling.casts,
        "sampling: cache and logits, GB": sampling.cache + sampling.logits, "scoring: activations, GB": scoring.activations,
        "scoring: the rest, GB": scoring.total - scoring.activations,
    }  # fmt: skip
    short = {name: f"{value / 1e9:.2f}" if value else "0" for name, value in numbers.items()}
    ram, seconds = max(found.host, of_node * weights) / 1e9, lines(found, tflops, gbs)[-1].split("TFLOP")[1].split()[0]
    sampled = flop.prefill + flop.decode
    return short | {
        "rows per process and step": str(sum(reading.rows for reading in found.readings)),
        "prompt + completion, tokens": f"{prompt} + {config.max_completion_length}", "**peak, GB**": f"{found.peak / 1e9:.1f}",
        "RAM that must be free to load, GB": few(ram) + " a node" * (of_node > 1),
        "sampling, TFLOP": few(sampled / 1e12), "scoring and backward, TFLOP": few((flop.total - sampled) / 1e12),
        "seconds a step under that assumption, at least": f"{float(seconds):.0f}",
    }  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_the_page_says_what_the_formulas_say(name):
    place = [cell.strip("`") for cell in cells("config")].index(name)
    said = {label: cells(label)[place] for label in figures(name)}
    assert said == figures(name)


@pytest.mark.parametrize("name", PLANS)
def test_each_config_fits_the_memory_that_it_claims(name):
    place = [cell.strip("`") for cell in cells("config")].index(name)
    claimed = float(cells("**of, GB**")[place])
    assert planned(name).peak <= ROOM * claimed * 1e9
    assert str(round(claimed)) in (CORE / "configs" / name).read_text(encoding="utf-8").split("out =")[0]


def test_every_config_is_planned_and_named_on_the_page():
    assert CONFIGS == sorted(PLANS) == sorted(set(re.findall(r"[a-z0-9_]+\.toml", PAGE)))


@pytest.mark.parametrize("way", WAYS)
def test_the_largest_that_fits_is_the_largest_that_fits(way):
    require("peft")
    processes, settings = WAYS[way]
    config = TrainConfig(
        prompts_per_step=processes, group_size=8, micro_batch_rows=1, gradient_checkpointing=True, max_completion_length=1024,
        **settings,
    )  # fmt: skip
    sizes = [name for name in MODELS if name != "0.1"]
    peaks = {name: estimate(config, MODELS[name], PROMPT, 1024, processes, "cuda").peak for name in sizes}
    memories = [float(cell.split()[0]) for cell in cells("trained, on so many processes")]
    largest = [max((name for name in sizes if peaks[name] <= ROOM * gb * 1e9), key=sizes.index) for gb in memories]
    assert cells(way) == [f"{name} B" for name in largest]


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_takes_a_step_of_the_built_in_model(name, tmp_path):
    """All of its settings but sizes, and what needs accelerate."""
    require("peft")
    config = from_toml(CORE / "configs" / name)
    small = {"prompts_per_step": 2, "group_size": 4, "max_completion_length": 8, "micro_batch_rows": 4, "steps": 1}
    alone = {"warmup_steps": 0, "autocast": False, "sharding": "replicate", "eval_every": 0}
    Run(replace(config, model="tiny", out=str(tmp_path / "run"), **small, **alone), resume=False)()
    assert list(tmp_path.glob("run/checkpoint-00000001/state.json"))


# ---- what the page states beside its tables --------------------------------------------------------------------------------
def test_seventy_billion_parameters_take_no_memory_on_the_meta_device():
    before = psutil.Process().memory_info().rss
    model = on_meta(MODELS["70"], TrainConfig(dtype="bfloat16"))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    found = estimate(TrainConfig(dtype="bfloat16"), MODELS["70"], PROMPT, 1024)
    assert found.held.weights == 2 * sum(p.numel() for p in model.parameters()) > 141e9
    assert psutil.Process().memory_info().rss - before < 1e9


@pytest.mark.parametrize("rate, share", [(1e-6, 0.02), (1e-5, 0.16)])
def test_most_bf16_weights_stay_where_they_are(rate, share):
    weights = torch.nn.Parameter((torch.randn(200_000) * 0.02).bfloat16())
    before = weights.detach().clone()
    weights.grad = torch.randn(200_000).bfloat16()
    torch.optim.AdamW([weights], lr=rate, weight_decay=0.0).step()
    assert float((weights.detach() != before).float().mean()) == pytest.approx(share, abs=0.005)


def test_the_command_prints_the_table_or_one_line(tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_text("max_completion_length = 64\n")
    done = subprocess.run(
        [sys.executable, "-m", "grpo_core.scale", str(config), "--prompt", "32"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "PEAK" in done.stdout and "TFLOP" in done.stdout, done.stderr
    assert main([str(config), "--processes", "3"]) == 2
    assert capsys.readouterr().err == "prompts_per_step: found 8 for 3 processes, allowed: a multiple\n"
    assert main([str(tmp_path / "none.toml")]) == 2
    assert capsys.readouterr().err.startswith("config: found no file")
