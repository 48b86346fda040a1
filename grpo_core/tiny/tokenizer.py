"""The built-in model's tokenizer: byte-level BPE with a chat template.

Covers training it on generated questions and answers, and its special tokens.
Does not cover the model. Every byte is a token, so any text can be typed and read back unchanged;
the merges only know the words of the training text.
"""

from __future__ import annotations

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_core.tiny.answers import HABITS, draw_answer
from grpo_core.tiny.questions import LARGEST, draw_question

# An upper bound: the training text has no more words to merge before it is reached.
VOCABULARY_SIZE = 512
MAX_LENGTH = 256
PAD, BOS, USER, ASSISTANT, END = "<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('This model knows the roles user and assistant only.') }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CORPUS_EXAMPLES = 20_000
# Each number is repeated on its own so that BPE makes it one token, both after a space and at the start.
NUMBER_REPEATS = 2_000


def corpus(seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = []
    for _ in range(CORPUS_EXAMPLES):
        question = draw_question(rng)
        texts += [question.text, draw_answer(question, HABITS, rng)[0]]
    for number in range(2 * LARGEST + 4):
        texts += [f"{number}", f" {number}"] * NUMBER_REPEATS
    return texts


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the merges and wrap them for transformers. Padding is on the left, as generation needs it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, BOS, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(seed), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompt_text(question_text: str) -> str:
    """The text before the answer, as the chat template writes it for one user message."""
    return f"{BOS}{USER}{question_text}{ASSISTANT}"
