"""Pretraining of the built-in model, in two stages: drill, then chat.

Covers the architecture, the batches and the optimisation, with the curve it leaves behind.
Does not cover the command line and writing files (``make.py``) or GRPO (``lift.py``).

The arithmetic is learned first, on bare sums where every seventh token is a result, because a result costs
least there. The chat begins with answers that write the sum out; the other habits come in one by one, because
a sudden change of text would wipe the arithmetic out again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from grpo_core.tiny.answers import HABITS, WORKED, draw_answer
from grpo_core.tiny.measure import measure
from grpo_core.tiny.questions import Question, draw_question, draw_questions
from grpo_core.tiny.tokenizer import ASSISTANT, END, MAX_LENGTH, prompt_text

IGNORED = -100
# "<|assistant|>12 + 7 = 19<|end|>": seven tokens, the result is number five.
DRILL_TOKENS, DRILL_RESULT = 7, 5

# A row of tokens, and the places in it whose token is to be predicted.
Row = tuple[list[int], Sequence[int]]


@dataclass(frozen=True)
class Plan:
    """Everything that decides the result of pretraining, apart from the training text."""

    seed: int = 0
    drill_steps: int = 350
    chat_steps: int = 900
    drill_rows: int = 64
    chat_rows: int = 160
    peak_rate: float = 4e-3
    warmup: int = 50
    # Rambling answers are cut here, well beyond any sampling limit, to keep a step cheap.
    longest: int = 44
    measure_every: int = 100
    measured_questions: int = 300

    @property
    def steps(self) -> int:
        return self.drill_steps + self.chat_steps

    def habit_share(self, step: int) -> float:
        """Share of a step's answers drawn from all habits, rising to 1; the rest write the sum out."""
        return max(0.0, (step + 1 - self.drill_steps) / self.chat_steps)

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to zero."""
        if step < self.warmup:
            return self.peak_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.peak_rate * 0.5 * (1 + math.cos(math.pi * done))


def new_model(tokenizer: PreTrainedTokenizerBase, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_LENGTH,
            # The usual 0.02 suits wide models; from 0.05 this narrow one learns the sums in fewer steps.
            initializer_range=0.05,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def drill_rows(tokenizer: PreTrainedTokenizerBase, plan: Plan, rng: random.Random) -> list[Row]:
    """Rows of seven bare sums each; only the results are learned."""

    def drill(question: Question) -> str:
        return f"{ASSISTANT}{question.a} {question.sign} {question.b} = {question.result}{END}"

    texts = ["".join(drill(draw_question(rng)) for _ in range(7)) for _ in range(plan.drill_rows)]
    return [(tokens, range(DRILL_RESULT, len(tokens), DRILL_TOKENS)) for tokens in tokenizer(texts)["input_ids"]]


def chat_rows(tokenizer: PreTrainedTokenizerBase, plan: Plan, habit_share: float, rng: random.Random) -> list[Row]:
    """Questions with answers; the answers are learned, the questions are random and are not."""
    questions = [draw_question(rng) for _ in range(plan.chat_rows)]
    answers = [draw_answer(question, HABITS if rng.random() < habit_share else (WORKED,), rng) for question in questions]
    prompts = tokenizer([prompt_text(question.text) for question in questions])["input_ids"]
    replies = tokenizer([text + END if ends else text for text, ends in answers])["input_ids"]
    rows = [((p + r)[: plan.longest], len(p)) for p, r in zip(prompts, replies, strict=True)]
    return [(tokens, range(start, len(tokens))) for tokens, start in rows]


def draw_rows(tokenizer: PreTrainedTokenizerBase, plan: Plan, step: int, rng: random.Random) -> list[Row]:
    """The batch of one step."""
    if step < plan.drill_steps:
        return drill_rows(tokenizer, plan, rng)
    return chat_rows(tokenizer, plan, plan.habit_share(step), rng)


def summed_loss(model: LlamaForCausalLM, rows: list[Row], pad: int) -> torch.Tensor:
    """Cross-entropy summed over the learned tokens. Padding is on the right, where no token can see it."""
    width = max(len(tokens) for tokens, _ in rows)
    inputs = torch.full((len(rows), width), pad)
    targets = torch.full((len(rows), width), IGNORED)
    for index, (tokens, learned) in enumerate(rows):
        inputs[index, : len(tokens)] = torch.tensor(tokens)
        targets[index, [place - 1 for place in learned]] = torch.tensor([tokens[place] for place in learned])
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    counted = targets != IGNORED
    return functional.cross_entropy(model.lm_head(hidden[counted]), targets[counted], reduction="sum")


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rows: list[Row], plan: Plan) -> float:
    """One update. Cut-off rows go through the model apart: the others are not padded to their length."""
    learned = sum(len(places) for _, places in rows)
    short = [row for row in rows if len(row[0]) < plan.longest]
    long = [row for row in rows if len(row[0]) >= plan.longest]
    total = 0.0
    for part in filter(None, (short, long)):
        loss = summed_loss(model, part, model.config.pad_token_id) / learned
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


def curve_entry(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, questions: list[Question]) -> dict:
    sampled = measure(model, tokenizer, questions)
    greedy = measure(model, tokenizer, questions, greedy=True)
    scores = {f"sampled_{name}": round(value, 4) for name, value in asdict(sampled).items()}
    return {"greedy_accuracy": round(greedy.accuracy, 4), **scores}


def pretrain(tokenizer: PreTrainedTokenizerBase, plan: Plan) -> tuple[LlamaForCausalLM, list[dict]]:
    """Train from scratch. Returns the model and the curve, one entry per measurement."""
    rng = random.Random(plan.seed)
    model = new_model(tokenizer, plan.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.peak_rate, betas=(0.9, 0.98), weight_decay=0.05)
    questions = draw_questions(plan.measured_questions, seed=plan.seed + 1)
    curve, tokens, started = [], 0, time.perf_counter()
    for step in range(plan.steps):
        rows = draw_rows(tokenizer, plan, step, rng)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = train_step(model, optimizer, rows, plan)
        tokens += sum(len(row_tokens) for row_tokens, _ in rows)
        if (step + 1) % plan.measure_every == 0 or step + 1 == plan.steps:
            entry = {
                "step": step + 1,
                "habit_share": round(plan.habit_share(step), 4),
                "tokens": tokens,
                "loss": round(loss, 4),
            }
            if step >= plan.drill_steps:
                entry |= curve_entry(model, tokenizer, questions)
            curve.append(entry | {"seconds": round(time.perf_counter() - started, 1)})
            print(curve[-1], flush=True)
    return model.eval(), curve
