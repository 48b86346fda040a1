"""A causal language model as this package uses it: hidden states, projection, tokens. Dropout is always off.

`Policy.clone()` makes the copy that a step trains, so that the loaded weights stay the reference; where the model carries
PEFT adapters, `AdaptersOff(policy)` is the reference instead: the same weights with the adapters switched off.
"""

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from jinja2.exceptions import TemplateError
from torch import Tensor

from .blocks import Masked, takes_blocks
from .decoding import make_room
from .logprobs import position_ids


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
        self.reorders_cache = False  # rows of a cache may be repeated and dropped; `load_policy` proves it
        self.packed = False  # a group is scored as one row, its prompt read once; `packing.choose_scoring` proves it
        self.block_cost: float | None = None  # where a pack's attention goes block by block; proven likewise
        self.one_pack = False  # all of a batch in one row: processes that share the weights take as many passes as each other

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def layers(self) -> torch.nn.ModuleList:
        """The decoder's layers: the longest list of equal modules in the body."""
        lists = [module for module in self._body.modules() if isinstance(module, torch.nn.ModuleList)]
        return max(lists, key=len)

    @property
    def body_parameters(self) -> int:
        """Numbers that every token is multiplied with on its way to the head: neither embedding nor head."""
        outside = {id(p) for layer in (self._causal_lm.get_input_embeddings(), self._causal_lm.get_output_embeddings())
                   for p in layer.parameters()}  # fmt: skip
        return sum(p.numel() for p in self.model.parameters() if id(p) not in outside)

    @property
    def _causal_lm(self):
        base = getattr(self.model, "get_base_model", None)  # PEFT wraps the model, its layers stay in place
        return base() if base else self.model

    @property
    def _body(self):
        return self._causal_lm.base_model

    @property
    def takes_blocks(self) -> bool:
        return takes_blocks(self._body)

    def same_way(self, other: "Policy") -> None:
        """Samples and scores from now on as `other` does."""
        self.reorders_cache, self.packed, self.one_pack = other.reorders_cache, other.packed, other.one_pack
        self.block_cost = other.block_cost

    def forward_context(self) -> AbstractContextManager:
        return nullcontext()

    def hidden(self, ids: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Last hidden states. Positions count real tokens only, so left padding changes nothing."""
        positions = {"position_ids": position_ids(mask)} if self.takes_positions else {}
        with self.forward_context():
            return self._body(input_ids=ids, attention_mask=mask.long(), use_cache=False, **positions).last_hidden_state

    def hidden_packed(
        self, ids: Int[Tensor, "1 S"], positions: Int[Tensor, "1 S"], mask: Float[Tensor, "1 1 S S"], **blocks: list[Masked]
    ) -> Float[Tensor, "1 S D"]:
        """Last hidden states of a pack (`packing`): positions as given, an additive mask that says who sees whom, and the
        `blocks` of it where there are any."""
        with self.forward_context():
            out = self._body(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **blocks)
        return out.last_hidden_state

    def extend(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B S"], positions: Int[Tensor, "B N"], cache):
        """Hidden states of N new tokens behind what `cache` holds, and the longer cache. `mask` covers both."""
        extra = {"position_ids": positions} if self.takes_positions else {}
        with self.forward_context():
            out = self._body(input_ids=ids, attention_mask=mask.long(), cache=cache, use_cache=True, **extra)
        return out.last_hidden_state, out.cache

    def prefill(self, ids: Int[Tensor, "N P"], mask: Bool[Tensor, "N P"], times: int, room: int = 0):
        """Hidden states [N·times D] of each prompt's last token and the cache behind it, repeated for its group, with room
        for as many tokens more."""
        if not self.reorders_cache:
            ids, mask, times = ids.repeat_interleave(times, 0), mask.repeat_interleave(times, 0), 1
        hidden, cache = self.extend(ids, mask, position_ids(mask), None)
        if times > 1:
            self.reorder(cache, torch.arange(len(ids), device=ids.device).repeat_interleave(times))
        make_room(cache, room)
        return hidden[:, -1].repeat_interleave(times, 0), cache

    @staticmethod
    def reorder(cache, rows: Int[Tensor, " M"]) -> None:
        """Row m of the cache becomes what row `rows[m]` was, in place; there may be more or fewer rows than before."""
        cache.reorder_cache(rows)

    def project(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Raw logits of hidden states: the head, and the scaling that some architectures put behind it."""
        head: torch.nn.Module = self._causal_lm.get_output_embeddings()
        with self.forward_context():
            logits = head(hidden)
        config = self._causal_lm.config
        logits = logits * getattr(config, "logit_scale", 1.0) if getattr(config, "logit_scale", None) else logits
        logits = logits / config.logits_scaling if getattr(config, "logits_scaling", None) else logits
        cap = getattr(config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits

    def clone(self) -> "Policy":
        """An independent copy of the weights."""
        other = type(self)(copy.deepcopy(self.model), self.tokenizer, self.name)
        other.same_way(self)
        return other

    def checkpoint_activations(self) -> None:
        """A layer's activations are made again in backward. Only the layers themselves count as training, nothing in them:
        dropout stays off."""
        self.model.activation_checkpointing_enable({"use_reentrant": False})
        for module in self.model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.training = True

    def load_adapters(self, folder: Path) -> None:
        """The adapters that were saved there, over those of now."""
        self.model.load_adapter(str(folder), self.model.active_adapter, is_trainable=True)

    def encode(self, prompt: str) -> list[int]:
        """Prompt ids: through the chat template where the tokenizer has one, else as plain text."""
        if self.has_chat_template:
            messages = [{"role": "user", "content": prompt}]
            try:
                text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            except TemplateError as error:
                raise ValueError(f"model: the chat template of {self.name!r} refuses: {first_line(error)}") from error
            return self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return self.tokenizer(prompt, verbose=False).input_ids  # `sample` says what is too long, and by how much

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def decode(self, ids: list[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def encode_again(self, ids: list[int]) -> list[int] | None:
        """What the tokenizer makes of the text of these ids; None where it does not know them all."""
        if not all(0 <= token < len(self.tokenizer) for token in ids):
            return None
        return self.tokenizer(self.tokenizer.decode(ids), add_special_tokens=False, verbose=False).input_ids

    def piece(self, token_id: int) -> str:
        """One token as text, its leading space kept; a lone byte of a character as its byte."""
        return piece_of(self.tokenizer, token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self.tokenizer.all_special_ids


def piece_of(tokenizer, token_id: int) -> str:
    """One token of this tokenizer as text."""
    if not 0 <= token_id < len(tokenizer):
        return f"<{token_id}>"
    raw = tokenizer.convert_ids_to_tokens(token_id)
    text = tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if "\ufffd" in text or not text:
        return raw
    return " " + text if raw.startswith("\u2581") and not text.startswith(" ") else text


class AdaptersOff(Policy):
    """The reference of a policy with PEFT adapters: the very same weights, adapters switched off while it scores."""

    def __init__(self, policy: Policy):
        if not hasattr(policy.model, "disable_adapter"):
            raise ValueError(f"reference: {policy.name!r} carries no PEFT adapters; use a frozen copy (policy.clone())")
        super().__init__(policy.model, policy.tokenizer, policy.name)
        self.same_way(policy)

    def forward_context(self) -> AbstractContextManager:
        return self.model.disable_adapter()


def _eos_ids(model, tokenizer) -> frozenset[int]:
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
