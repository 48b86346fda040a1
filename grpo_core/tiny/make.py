"""Make the built-in model: ``python -m grpo_core.tiny.make [--out FOLDER] [--curve FILE]``.

Covers the one command from nothing to a folder with weights, tokenizer, configuration and chat template, and
the pretraining half of ``curves.json``. Does not cover the training itself (``pretrain.py``).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import GenerationConfig

from grpo_core.tiny import MODEL_FOLDER, record
from grpo_core.tiny.measure import ANSWER_LIMIT, measure
from grpo_core.tiny.pretrain import Plan, pretrain
from grpo_core.tiny.questions import draw_questions
from grpo_core.tiny.tokenizer import build_tokenizer

MEASURED_QUESTIONS, MEASURED_SEED = 1000, 7
# One thread adds numbers up in one order, so the number of cores does not change the result; and on a busy
# machine threads that wait for one another cost more than they save on tensors this small.
THREADS = 1


def make(folder: Path, plan: Plan) -> dict:
    """Train and save. Returns the curve and the final scores."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokenizer = build_tokenizer(plan.seed)
    model, curve = pretrain(tokenizer, plan)
    model.generation_config = GenerationConfig(
        do_sample=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=ANSWER_LIMIT,
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seconds = {"wall": round(time.perf_counter() - wall, 1), "cpu": round(time.process_time() - cpu, 1)}
    questions = draw_questions(MEASURED_QUESTIONS, MEASURED_SEED)
    torch.manual_seed(MEASURED_SEED)
    return {
        "plan": asdict(plan),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": seconds,
        "questions": len(questions),
        "sampled": asdict(measure(model, tokenizer, questions)),
        "greedy": asdict(measure(model, tokenizer, questions, greedy=True)),
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the built-in model from scratch.")
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER, help="folder to write the model to")
    parser.add_argument("--curve", type=Path, help="record the curve and the scores in this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    result = make(arguments.out, Plan())
    print({name: value for name, value in result.items() if name != "curve"})
    if arguments.curve:
        record(arguments.curve, "pretraining", result)


if __name__ == "__main__":
    main()
