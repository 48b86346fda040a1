"""A causal language model as this package uses it: hidden states, projection, tokens. Dropout is always off.

`load_policy` takes the built-in model, a folder or a hub id and refuses with one clear line what it cannot load.
`Policy.clone()` makes the copy that a step trains, so that the loaded weights stay the reference; where the model carries
PEFT adapters, `AdaptersOff(policy)` is the reference instead: the same weights with the adapters switched off.
"""

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import psutil
import torch
from jaxtyping import Bool, Float, Int
from jinja2.exceptions import TemplateError
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from .logprobs import position_ids

BUILT_IN = {"tiny": Path(__file__).parent / "tiny" / "model"}
COPIES = 5  # of the weights while a step runs: loaded, trained, its gradient, AdamW's two moments


class Policy:
    """A model with its tokenizer. `hidden` then `project` are the two halves of its forward pass."""

    def __init__(self, model, tokenizer, name: str):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.max_length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.eos_ids = _eos_ids(model, tokenizer)
        pad = tokenizer.pad_token_id  # may be new to the model; padding is masked, so any id that it knows will do
        self.pad_id: int = pad if pad is not None and pad < self.vocab_size else min(self.eos_ids, default=0)
        self.bos_id: int | None = tokenizer.bos_token_id
        self.takes_positions = "position_ids" in inspect.signature(self._body.forward).parameters

    @property
    def _causal_lm(self):
        base = getattr(self.model, "get_base_model", None)  # PEFT wraps the model, its layers stay in place
        return base() if base else self.model

    @property
    def _body(self):
        return self._causal_lm.base_model

    def forward_context(self) -> AbstractContextManager:
        return nullcontext()

    def hidden(self, ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Last hidden states. Positions count real tokens only, so left padding changes nothing."""
        positions = {"position_ids": position_ids(mask)} if self.takes_positions else {}
        with self.forward_context():
            return self._body(input_ids=ids, attention_mask=mask.long(), use_cache=False, **positions).last_hidden_state

    def extend(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B S"], positions: Int[Tensor, "B N"], cache):
        """Hidden states of N new tokens behind what `cache` holds, and the longer cache. `mask` covers both."""
        extra = {"position_ids": positions} if self.takes_positions else {}
        with self.forward_context():
            out = self._body(input_ids=ids, attention_mask=mask.long(), cache=cache, use_cache=True, **extra)
        return out.last_hidden_state, out.cache

    def project(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Raw logits of hidden states: the head, and the scaling that some architectures put behind it."""
        with self.forward_context():
            logits = self._causal_lm.get_output_embeddings()(hidden)
        config = self._causal_lm.config
        logits = logits * getattr(config, "logit_scale", 1.0) if getattr(config, "logit_scale", None) else logits
        logits = logits / config.logits_scaling if getattr(config, "logits_scaling", None) else logits
        cap = getattr(config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits

    def clone(self) -> "Policy":
        """An independent copy of the weights."""
        return type(self)(copy.deepcopy(self.model), self.tokenizer, self.name)

    def encode(self, prompt: str) -> list[int]:
        """Prompt ids: through the chat template where the tokenizer has one, else as plain text."""
        if self.has_chat_template:
            messages = [{"role": "user", "content": prompt}]
            try:
                text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            except TemplateError as error:
                raise ValueError(f"model: the chat template of {self.name!r} refuses: {_first_line(error)}") from error
            return self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return self.tokenizer(prompt, verbose=False).input_ids  # `sample` says what is too long, and by how much

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def decode(self, ids: list[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def piece(self, token_id: int) -> str:
        """One token as text, its leading space kept; a lone byte of a character as its byte."""
        if not 0 <= token_id < len(self.tokenizer):
            return f"<{token_id}>"
        raw = self.tokenizer.convert_ids_to_tokens(token_id)
        text = self.tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if "\ufffd" in text or not text:
            return raw
        return " " + text if raw.startswith("\u2581") and not text.startswith(" ") else text

    def is_special(self, token_id: int) -> bool:
        return token_id in self.tokenizer.all_special_ids


class AdaptersOff(Policy):
    """The reference of a policy with PEFT adapters: the very same weights, adapters switched off while it scores."""

    def __init__(self, policy: Policy):
        if not hasattr(policy.model, "disable_adapter"):
            raise ValueError(f"reference: {policy.name!r} carries no PEFT adapters; use a frozen copy (policy.clone())")
        super().__init__(policy.model, policy.tokenizer, policy.name)

    def forward_context(self) -> AbstractContextManager:
        return self.model.disable_adapter()


def load_policy(name: str = "tiny") -> Policy:
    """The built-in model ("tiny"), a folder with a causal LM, or a hub id; weights in fp32, on the CPU.

    Raises ValueError with one line that says what is wrong and what would be right.
    """
    source = _source(name)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)  # None would ask at the terminal
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model: found {name!r}, no readable config.json there ({_first_line(error)})") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"model: found {name!r}, an encoder-decoder ({config.model_type}); allowed: a decoder-only causal LM")
    _refuse_too_large(name, config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"model: found {name!r}, no tokenizer could be read ({_first_line(error)})") from error
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
        model, info = loaded  # pyright: ignore[reportGeneralTypeIssues]  # its annotation knows the model alone
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"model: found {name!r}, no weights of a causal LM could be read ({_first_line(error)})") from error
    if info["missing_keys"]:  # transformers would train on with random numbers in their place
        absent = sorted(info["missing_keys"])
        raise ValueError(f"model: found {name!r} without {len(absent)} of its weights ({absent[0]}); was it saved completely?")
    policy = Policy(model, tokenizer, name)
    _prove_sampling(policy)
    _prove_projection(policy)
    return policy


def _source(name: str) -> str:
    if name in BUILT_IN:
        return str(BUILT_IN[name])
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
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


def _refuse_too_large(name: str, config) -> None:
    """Count the parameters without any memory for them, and compare with what a step needs."""
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except (ValueError, KeyError) as error:
            raise ValueError(f"model: found {name!r}, which is not a causal LM ({_first_line(error)})") from error
    parameters = sum(p.numel() for p in model.parameters())
    need, free = COPIES * 4 * parameters, psutil.virtual_memory().available
    if need > free:
        raise ValueError(
            f"model: {name!r} has {parameters / 1e9:.2f} B parameters; one step needs about {need / 2**30:.1f} GiB "
            f"({COPIES} copies in fp32), {free / 2**30:.1f} GiB are free; choose a smaller model"
        )


@torch.no_grad()
def _prove_sampling(policy: Policy) -> None:
    """A row read token by token behind a cache, and without its left padding, must have the states of one whole pass."""
    who = f"model: {policy.name!r} ({policy.model.config.model_type})"
    ids = torch.arange(10).reshape(2, 5) % policy.vocab_size
    mask = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    whole = policy.hidden(ids, mask)[:, 2:]
    limit = 1e-3 * max(1.0, whole.abs().max().item())

    def prove(states: Tensor, expected: Tensor, fault: str) -> None:
        if not (states - expected).abs().max().item() <= limit:
            raise ValueError(f"{who} {fault}; allowed: a causal LM that reads a row from left to right")

    prove(policy.hidden(ids[:, :4], mask[:, :4])[:, 2:], whole[:, :2], "lets a token see those behind it")
    prove(policy.hidden(ids[1:, 2:], mask[1:, 2:]), whole[1:], "gives other states to a prompt that is padded at the left")
    positions, cache, pieces = position_ids(mask), None, []
    try:
        for start, end in ((0, 3), (3, 4), (4, 5)):
            state, cache = policy.extend(ids[:, start:end], mask[:, :end], positions[:, start:end], cache)
            pieces.append(state[:, -1:])
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{who} cannot be sampled from with a cache here ({_first_line(error)})") from error
    prove(torch.cat(pieces, dim=1), whole, "gives other states from its cache than in one pass over the row")


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


def _eos_ids(model, tokenizer) -> frozenset[int]:
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
