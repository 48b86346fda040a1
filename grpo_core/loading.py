"""Load a policy: the built-in model, a folder or a hub id, and prove that it is what this package takes it for.

`load_policy` refuses with one clear line what it cannot load, and what would give wrong numbers without an error: states
that depend on padding, a cache that disagrees with the whole row, something unknown behind the output head.
"""

from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from .decoding import WORTH, make_room, noting_inputs, read_few_rows_well, weights_for_few_rows
from .logprobs import position_ids
from .policy import Policy, first_line

BUILT_IN = {"tiny": Path(__file__).parent / "tiny" / "model"}
COPIES = 5  # of the weights while a step runs: loaded, trained, its gradient, AdamW's two moments


def load_policy(name: str = "tiny", dtype: torch.dtype = torch.float32) -> Policy:
    """The built-in model ("tiny"), a folder with a causal LM, or a hub id; weights in `dtype`, on the CPU.

    Raises ValueError with one line that says what is wrong and what would be right.
    """
    source = _source(name)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)  # None would ask at the terminal
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model: found {name!r}, no readable config.json there ({first_line(error)})") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"model: found {name!r}, an encoder-decoder ({config.model_type}); allowed: a decoder-only causal LM")
    _refuse_too_large(name, config, dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"model: found {name!r}, no tokenizer could be read ({first_line(error)})") from error
    try:
        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, trust_remote_code=False)
        model, info = loaded  # pyright: ignore[reportGeneralTypeIssues]  # its annotation knows the model alone
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"model: found {name!r}, no weights of a causal LM could be read ({first_line(error)})") from error
    if info["missing_keys"]:  # transformers would train on with random numbers in their place
        absent = sorted(info["missing_keys"])
        raise ValueError(f"model: found {name!r} without {len(absent)} of its weights ({absent[0]}); was it saved completely?")
    read_few_rows_well(model)
    policy = Policy(model, tokenizer, name)
    _prove_sampling(policy)
    _prove_projection(policy)
    return policy


def add_adapters(policy: Policy, rank: int, alpha: float, targets: tuple[str, ...], seed: int) -> Policy:
    """The policy with fresh LoRA adapters on these linear layers; only they are trained. Same seed, same adapters."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"lora_rank: found {rank}, which needs the package peft (pip install peft)") from error
    modules = targets[0] if targets == ("all-linear",) else list(targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, task_type="CAUSAL_LM")  # pyright: ignore
            model = get_peft_model(policy.model, config)
        except ValueError as error:
            raise ValueError(f"lora_targets: found {targets}, which {policy.name!r} refuses ({first_line(error)})") from error
    adapted = Policy(model, policy.tokenizer, policy.name)
    adapted.reorders_cache = policy.reorders_cache
    return adapted


def _source(name: str) -> str:
    if name in BUILT_IN:
        return str(BUILT_IN[name])
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            if (path / "model" / "config.json").exists():  # a checkpoint of a run
                raise ValueError(
                    f"model: found folder {name!r} without config.json; did you mean {str(Path(name) / 'model')!r}?"
                )
            if (path / "adapter_config.json").exists():
                raise ValueError(
                    f"model: found folder {name!r} with adapters only; allowed: a whole model (merge them with PEFT)"
                )
            raise ValueError(f"model: found folder {name!r} without config.json; allowed: a folder saved by transformers")
        if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
            raise ValueError(
                f"model: found folder {name!r} without weights; allowed: a folder saved by transformers (*.safetensors)"
            )
        return str(path)
    if path.exists():
        raise ValueError(f"model: found the file {name!r}; allowed: a folder, a hub id, or {', '.join(BUILT_IN)}")
    if name.startswith((".", "~", "/")) or name.count("/") != 1 and "/" in name or "\\" in name:
        raise ValueError(f"model: found no {name!r}; allowed: an existing folder, a hub id, or {', '.join(BUILT_IN)}")
    return name


def _refuse_too_large(name: str, config, dtype: torch.dtype) -> None:
    """Count the parameters without any memory for them, and compare with what a step needs."""
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except (ValueError, KeyError) as error:
            raise ValueError(f"model: found {name!r}, which is not a causal LM ({first_line(error)})") from error
    parameters = sum(p.numel() for p in model.parameters())
    need, free = COPIES * dtype.itemsize * parameters, psutil.virtual_memory().available
    if need > free:
        raise ValueError(
            f"model: {name!r} has {parameters / 1e9:.2f} B parameters; one step needs about {need / 2**30:.1f} GiB "
            f"({COPIES} copies in {str(dtype)[6:]}), {free / 2**30:.1f} GiB are free; choose a smaller model"
        )


@torch.no_grad()
def _prove_sampling(policy: Policy) -> None:
    """A row read token by token behind a cache, and without its left padding, must have the states of one whole pass."""
    who = f"model: {policy.name!r} ({policy.model.config.model_type})"
    ids = torch.arange(10).reshape(2, 5) % policy.vocab_size
    mask = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    with noting_inputs(policy.model):
        whole = policy.hidden(ids, mask)[:, 2:]
    limit = 1e-3 * max(1.0, whole.abs().max().item())

    def prove(states: Tensor, expected: Tensor, fault: str) -> None:
        if not (states - expected).abs().max().item() <= limit:
            raise ValueError(f"{who} {fault}; allowed: a causal LM that reads a row from left to right")

    prove(policy.hidden(ids[:, :4], mask[:, :4])[:, 2:], whole[:, :2], "lets a token see those behind it")
    prove(policy.hidden(ids[1:, 2:], mask[1:, 2:]), whole[1:], "gives other states to a prompt that is padded at the left")
    positions, cache, pieces = position_ids(mask), None, []
    try:
        with weights_for_few_rows(policy.model, WORTH):
            for start, end in ((0, 3), (3, 4), (4, 5)):
                state, cache = policy.extend(ids[:, start:end], mask[:, :end], positions[:, start:end], cache)
                pieces.append(state[:, -1:])
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{who} cannot be sampled from with a cache here ({first_line(error)})") from error
    prove(torch.cat(pieces, dim=1), whole, "gives other states from its cache than in one pass over the row")
    policy.reorders_cache = _reorders(policy, ids, mask, limit)


def _reorders(policy: Policy, ids: Tensor, mask: Tensor, limit: float) -> bool:
    """Whether a cache whose rows were repeated and dropped goes on as if they had always been so."""
    positions, rows, kept = position_ids(mask), torch.tensor([1, 0, 1, 0]), torch.tensor([0, 1, 3])
    _, straight = policy.extend(ids[rows, :4], mask[rows, :4], positions[rows, :4], None)
    _, moved = policy.extend(ids[:, :4], mask[:, :4], positions[:, :4], None)
    left = rows[kept]
    try:
        make_room(moved, 1)
        for order in (rows, kept):
            policy.reorder(moved, order)
        got, _ = policy.extend(ids[left, 4:], mask[left], positions[left, 4:], moved)
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False
    expected, _ = policy.extend(ids[rows, 4:], mask[rows], positions[rows, 4:], straight)
    return (got - expected[kept]).abs().max().item() <= limit


@torch.no_grad()
def _prove_projection(policy: Policy) -> None:
    """`project(hidden(...))` must be the model's own logits: an unknown scaling behind the head would falsify all."""
    ids = torch.arange(4).unsqueeze(0) % policy.vocab_size
    mask = torch.ones_like(ids, dtype=torch.bool)
    own = policy.model(input_ids=ids, attention_mask=mask.long()).logits
    ours = policy.project(policy.hidden(ids, mask)[0])
    gap = (own[0] - ours).abs().max().item()
    if not gap <= 1e-3 * max(1.0, own.abs().max().item()):
        raise ValueError(
            f"model: {policy.name!r} ({policy.model.config.model_type}) does something behind its output head that is "
            f"not known here: its logits differ from head(hidden) by {gap:.3g}"
        )
