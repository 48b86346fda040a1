"""One traced step of the built-in model, written the way each tool writes its dump: `python tests/import_samples.py` makes the
files of data/imports. The layouts are those of the sources that `grpo_core/importers` names; TRL's file is TRL's own.
"""

import json
import sys
from pathlib import Path

import torch

from grpo_core import Batch, Recipe, batch_of_trace, grpo_step, load_policy, sample

HERE = Path(__file__).parent / "data" / "imports"
PROMPTS = ("12 + 7 =", "3 * 4 =")


def step_batch() -> Batch:
    """Two groups of three rows, first update: the numbers that every sample holds."""
    recipe = Recipe(
        prompts=PROMPTS, group_size=3, max_completion_length=8, seed=5, reward_functions=("correct",), reward_weights=(1.0,),
        edited_rewards=tuple((row, 0, value) for row, value in enumerate((1.0, 0.0, 0.0, 0.0, 1.0, 0.5))),
    )  # fmt: skip
    policy = load_policy("tiny")
    trace = grpo_step(policy.clone(), policy, sample(policy, recipe.prompts, recipe), recipe)
    return batch_of_trace(trace, 0, policy)


def rows_of(batch: Batch) -> list[dict]:
    """Each row without padding: ids, numbers and texts."""
    policy, rows = load_policy("tiny"), []
    for at in range(len(batch.prompt_ids)):
        prompt = batch.prompt_ids[at][batch.prompt_mask[at]].tolist()
        real = batch.completion_mask[at]
        row = {name: getattr(batch, f"{name}_logprobs")[at][real].tolist() for name in ("policy", "ref", "sampler")}
        row |= {"prompt": prompt, "completion": batch.completion_ids[at][real].tolist(), "reward": float(batch.rewards[at, 0])}
        row |= {"advantage": float(batch.advantages[at]), "cut": batch.finish_reasons[at] == "length"}
        row |= {"prompt_text": policy.tokenizer.decode(prompt), "text": policy.decode(row["completion"])}
        row["pieces"] = policy.tokenizer.convert_ids_to_tokens(row["completion"])
        rows.append(row)
    return rows


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def nemo_rl(rows: list[dict], path: Path) -> None:
    """A slice of one row per line, so a list of length 1 around every value; padded to the longest row."""
    width = max(len(row["prompt"] + row["completion"]) for row in rows)
    lines = []
    for at, row in enumerate(rows):
        before, length = len(row["prompt"]), len(row["prompt"] + row["completion"])

        def padded(values, fill=0.0, before=before, length=length):
            return [[fill] * (before + length - before - len(values)) + values + [fill] * (width - length)]

        lines.append({
            "content": [row["prompt_text"] + row["text"]], "rewards": [row["reward"]], "input_lengths": [length],
            "token_ids": padded(row["prompt"] + row["completion"], 0),
            "token_loss_mask": padded([1] * len(row["completion"]), 0),
            "sample_loss_mask": [1.0], "advantages": [[row["advantage"]] * width],
            "generation_logprobs": padded(row["sampler"]), "prev_logprobs": padded(row["policy"]), "idx": at,
        })  # fmt: skip
    write_lines(path, lines)


def slime(rows: list[dict], path: Path) -> None:
    """Format 2: a dict per sample, tensors on the CPU, raw_reward of the whole rollout beside them."""
    samples = [{
        "data_parallel_rank": 0, "sample_index": at, "rollout_position": at,
        "tokens": torch.tensor(row["prompt"] + row["completion"]),
        "response_lengths": len(row["completion"]), "total_lengths": len(row["prompt"] + row["completion"]),
        "loss_masks": torch.ones(len(row["completion"]), dtype=torch.int32), "rewards": row["advantage"],
        "truncated": int(row["cut"]),
        "rollout_log_probs": torch.tensor(row["sampler"]), "log_probs": torch.tensor(row["policy"]),
        "ref_log_probs": torch.tensor(row["ref"]), "advantages": torch.full((len(row["completion"]),), row["advantage"]),
        "rollout_ids": at, "rollout_mask_sums": len(row["completion"]),
    } for at, row in enumerate(rows)]  # fmt: skip
    shard = {"rank": 0, "data_parallel_rank": 0, "sample_indices": list(range(len(rows))), "num_microbatches": [1]}
    payload = {"format_version": 2, "rollout_id": 7, "rank": 0, "samples": samples, "dp_shards": [shard]}
    torch.save(payload | {"raw_reward": [row["reward"] for row in rows]}, path)


def slime_early(rows: list[dict], path: Path) -> None:
    """Before format 2: a list per name."""
    data = {
        "tokens": [torch.tensor(row["prompt"] + row["completion"]) for row in rows],
        "response_lengths": [len(row["completion"]) for row in rows], "rewards": [row["advantage"] for row in rows],
        "loss_masks": [torch.ones(len(row["completion"])) for row in rows], "raw_reward": [row["reward"] for row in rows],
        "log_probs": [torch.tensor(row["policy"]) for row in rows], "ref_log_probs": [torch.tensor(row["ref"]) for row in rows],
        "advantages": [torch.full((len(row["completion"]),), row["advantage"]) for row in rows],
    }  # fmt: skip
    torch.save({"rollout_id": 7, "rank": 0, "rollout_data": data}, path)


def openrlhf(rows: list[dict], path: Path) -> None:
    """vars(Experience): padded on the right, [B S] and [B S-1]."""
    width = max(len(row["prompt"] + row["completion"]) for row in rows)

    def matrix(name: str, first: int) -> torch.Tensor:
        out = torch.zeros(len(rows), width - 1)
        for at, row in enumerate(rows):
            values = torch.ones(len(row["completion"])) if name == "mask" else torch.tensor(row[name])
            out[at, len(row["prompt"]) - first :][: len(values)] = values
        return out

    whole = [row["prompt"] + row["completion"] for row in rows]
    mask = matrix("mask", 1)
    torch.save({
        "sequences": torch.tensor([ids + [0] * (width - len(ids)) for ids in whole]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in whole]),
        "action_mask": mask.bool(), "action_log_probs": matrix("policy", 1), "base_action_log_probs": matrix("ref", 1),
        "rollout_log_probs": matrix("sampler", 1), "values": None, "returns": None, "kl": None,
        "advantages": mask * torch.tensor([row["advantage"] for row in rows]).unsqueeze(1),
        "rewards": torch.tensor([row["reward"] for row in rows]), "truncated": torch.tensor([row["cut"] for row in rows]),
        "prompts": [row["prompt_text"] for row in rows], "labels": [""] * len(rows), "info": {}, "index": None,
    }, path)  # fmt: skip


def unipo(rows: list[dict], path: Path) -> None:
    def response(row: dict, at: int) -> dict:
        tokens = {"ids": row["completion"], "strings": row["pieces"], "log_probs": row["policy"]}
        tokens |= {"old_log_probs": row["policy"], "ref_log_probs": row["ref"], "token_kl": [0.0] * len(row["completion"])}
        return {
            "id": f"step3_sample{at}", "reward": row["reward"], "advantage": row["advantage"], "response_text": row["text"],
            "response_length": len(row["completion"]), "tokens": tokens,
        }  # fmt: skip

    groups = []
    for first in range(0, len(rows), 3):
        members = [response(row, at) for at, row in enumerate(rows[first : first + 3])]
        groups.append({"prompt": rows[first]["prompt_text"], "responses": members})
    entry = {"step": 3, "is_first_step_after_rollout_phase": True, "metrics": {"policy_objective": 0.1, "reward": 0.3}}
    entry |= {"prompts": groups}
    header = {"task": "sums", "algorithm": "grpo", "totalSteps": 2, "hparams": {"clip_eps": 0.2, "kl_coef": 0.04}}
    path.write_text(json.dumps({"header": header, "entries": [entry | {"step": 2}, entry]}, indent=1), encoding="utf-8")


def rl_logging_board(rows: list[dict], path: Path) -> None:
    """Padding stays among the tokens; two steps in one file."""
    lines = [{
        "prompt": row["prompt_text"], "response": row["text"] + "<pad>", "response_tokens": row["pieces"] + ["<pad>"],
        "logprobs": row["policy"], "ref_logprobs": row["ref"], "values": [0.0] * len(row["policy"]),
        "token_rewards": [0.0] * len(row["policy"]), "reward": row["reward"], "step": step,
    } for step in (3, 4) for row in rows]  # fmt: skip
    write_lines(path, lines)


def verl_rollout(rows: list[dict], path: Path) -> None:
    write_lines(path, [{"input": row["prompt_text"], "output": row["text"], "gts": "19", "score": row["reward"], "step": 4,
                        "acc": row["reward"] == 1.0} for row in rows])  # fmt: skip


def plain(rows: list[dict], path: Path) -> None:
    plain_rows = [{"prompt": row["prompt_text"], "completion": row["text"], "reward": row["reward"]} for row in rows]
    path.write_text(json.dumps(plain_rows), encoding="utf-8")


def plain_lines(rows: list[dict], path: Path) -> None:
    rewards = [{"right": row["reward"], "short": 0.5} for row in rows]
    pairs = zip(rows, rewards, strict=True)
    write_lines(path, [{"prompt": row["prompt_text"], "completion": row["text"], "reward": given} for row, given in pairs])


WRITERS = {
    "nemo-rl.jsonl": nemo_rl, "slime.pt": slime, "slime-early.pt": slime_early, "openrlhf.pt": openrlhf,
    "unipo.json": unipo, "rl-logging-board.jsonl": rl_logging_board, "verl-rollout.jsonl": verl_rollout,
    "rows.json": plain, "rows.jsonl": plain_lines,
}  # fmt: skip


def trl_completions(path: Path) -> None:
    """TRL's own file of a real run of one step."""
    import tempfile

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def distinct(completion_ids, **_):
        return [float(len(set(ids))) for ids in completion_ids]

    def long(completion_ids, **_):
        return [None if len(ids) < 3 else 1.0 for ids in completion_ids]

    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=6, num_generations=3,
            max_completion_length=8, max_steps=1, logging_steps=1, log_completions=True, save_strategy="no", seed=1,
            gradient_checkpointing=False, disable_tqdm=True,
        )  # fmt: skip
        model = Path(__file__).parent.parent / "grpo_core" / "tiny" / "model"
        data = Dataset.from_dict({"prompt": list(PROMPTS)})
        GRPOTrainer(model=str(model), reward_funcs=[distinct, long], args=args, train_dataset=data).train()
        path.write_bytes(next(Path(folder).glob("completions/*.parquet")).read_bytes())


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    step = step_batch()
    found = rows_of(step)
    for name, write in WRITERS.items():
        write(found, HERE / name)
    trl_completions(HERE / "trl-completions.parquet")
    print(*sorted(HERE.iterdir()), sep="\n", file=sys.stderr)
