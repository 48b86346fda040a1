"""How often the model is right: the number the README and the curves report.

Covers marking one answer, and sampling one answer to each question with transformers' own ``generate``.
Does not cover the rewards of the app, though the rule is the same: the last integer in the answer counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_core.tiny.questions import Question
from grpo_core.tiny.tokenizer import prompt_text

ANSWER_LIMIT = 24
BATCH = 512


@dataclass(frozen=True)
class Score:
    """Shares of all answers, from 0 to 1, and the mean number of tokens an answer has."""

    accuracy: float
    correct: float
    format: float
    finished: float
    length: float


def is_correct(text: str, result: int) -> bool:
    integers = re.findall(r"-?\d+", text)
    return bool(integers) and int(integers[-1]) == result


def is_well_formed(text: str) -> bool:
    return re.search(r"\d\.?$", text.strip()) is not None


@torch.no_grad()
def answer_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    greedy: bool = False,
) -> list[list[int]]:
    """One answer to each question, cut after its end token. Uses torch's global random state."""
    answers = []
    for start in range(0, len(questions), BATCH):
        prompts = [prompt_text(question.text) for question in questions[start : start + BATCH]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        output = model.generate(
            **inputs, do_sample=not greedy, max_new_tokens=ANSWER_LIMIT, pad_token_id=tokenizer.pad_token_id
        )
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            answers.append(row[:end])
    return answers


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Question],
    greedy: bool = False,
) -> Score:
    """Accuracy counts the answers that are correct and ended within the limit, as the README reports."""
    was_training = model.training
    model.eval()
    answers = answer_tokens(model, tokenizer, questions, greedy)
    model.train(was_training)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    finished = [tokens[-1] == tokenizer.eos_token_id for tokens in answers]
    correct = [is_correct(text, question.result) for text, question in zip(texts, questions, strict=True)]
    count = len(questions)
    return Score(
        accuracy=sum(c and f for c, f in zip(correct, finished, strict=True)) / count,
        correct=sum(correct) / count,
        format=sum(is_well_formed(text) and f for text, f in zip(texts, finished, strict=True)) / count,
        finished=sum(finished) / count,
        length=sum(map(len, answers)) / count,
    )
