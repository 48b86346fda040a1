"""Where prompts come from: JSON lines, data sets, generators; and which of them a step gets."""

import json
from pathlib import Path

import pytest
from builders import QUESTIONS
from peers import require

from grpo_core.__main__ import main
from grpo_core.data import load_prompts
from grpo_core.rewards import Rewards
from grpo_core.train_config import TrainConfig
from grpo_core.trainer import Trainer


def typed(path: Path) -> TrainConfig:
    return TrainConfig(data=str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "data: found no rows in"),
        ('{"prompt": "1"}\n{"prompt"', "line 2 is not JSON (Expecting ':' delimiter)"),
        ('{"prompt": "1"}\n\n["1"]', "line 3 has no 'prompt', allowed: an object that has it"),
        ('{"question": "1"}', "line 1 has no 'prompt', allowed: an object that has it"),
        ('{"prompt": "1"}\n{"prompt": 1}', "data: found a prompt of type int, allowed: text or a list of one message (in"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_holds_no_prompts_is_one_line_and_status_2(capsys, tmp_path, text, said):
    path, out = tmp_path / "rows.jsonl", tmp_path / "out"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["train", "--set=model=/no/such/folder", f"--set=data={path}", f"--set=out={out}"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("data: ") and error.count("\n") == 1 and not out.exists()


def test_json_lines_are_rows_with_all_their_columns(jsonl):
    prompts = load_prompts(typed(jsonl))
    assert list(prompts.rows) == QUESTIONS and prompts.first(2) == QUESTIONS[:2] and len(prompts.first(99)) == 7
    assert prompts.text(QUESTIONS[3]) == "3 + 1"


def test_a_conversation_is_its_only_message_and_none_is_cut_short(tmp_path):
    path, asked = tmp_path / "rows.jsonl", {"role": "user", "content": "1 + 1"}
    path.write_text(json.dumps({"asked": [asked]}), encoding="utf-8")
    prompts = load_prompts(TrainConfig(data=str(path), prompt_column="asked"))
    assert prompts.text(prompts.rows[0]) == "1 + 1"
    path.write_text(json.dumps({"asked": [{"role": "system", "content": "Be brief."}, asked]}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"found a conversation of system, user, allowed: one message of the user \(in .*line 1"
    ):
        load_prompts(TrainConfig(data=str(path), prompt_column="asked"))


def test_a_file_names_every_column_that_a_row_of_it_has(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1"}\n{"prompt": "2", "answer": "2"}\n', encoding="utf-8")
    assert load_prompts(TrainConfig(data=str(path))).columns == ("prompt", "answer")


def test_each_epoch_holds_every_row_once_in_an_order_of_its_own(jsonl):
    prompts = load_prompts(typed(jsonl))
    drawn = [row["level"] * 10 + int(row["answer"]) for step in range(7) for row in prompts.of_step(step, 3)]
    epochs = [drawn[start : start + 7] for start in (0, 7, 14)]
    assert all(len(set(epoch)) == 7 for epoch in epochs) and len(set(map(tuple, epochs))) == 3


def test_the_rows_of_a_step_depend_on_the_seed_and_the_step_alone(jsonl):
    first, again, other = (load_prompts(TrainConfig(data=str(jsonl), seed=seed)) for seed in (1, 1, 2))
    whole = [first.of_step(step, 2) for step in range(8)]
    assert [again.of_step(step, 2) for step in reversed(range(8))] == whole[::-1]
    assert [other.of_step(step, 2) for step in range(8)] != whole
    assert first.of_step(0, 4) == whole[0] + whole[1]


def test_the_built_in_questions_never_end_and_typed_ones_are_taken_as_they_are():
    sums = load_prompts(TrainConfig(seed=1))
    assert sums.of_step(10**6, 2) == load_prompts(TrainConfig(seed=1)).of_step(10**6, 2)
    assert len({sums.text(row) for row in sums.of_step(0, 50)}) > 40
    typed_in = load_prompts(TrainConfig(data="prompts", prompts=("1 + 1", "2 + 2")))
    assert {typed_in.text(row) for row in typed_in.of_step(0, 2)} == {"1 + 1", "2 + 2"}


def test_a_folder_of_datasets_is_read_row_by_row(tmp_path, capsys):
    require("datasets")
    import datasets

    datasets.Dataset.from_list(QUESTIONS).save_to_disk(tmp_path / "kept")
    prompts = load_prompts(typed(tmp_path / "kept"))
    assert len(prompts.rows) == 7 and prompts.first(1) == QUESTIONS[:1]
    for name, column, said in (("kept", "question", "has no column 'question', allowed: prompt, answer, level"),
                               ("none", "prompt", "cannot be loaded (")):  # fmt: skip
        with pytest.raises(ValueError, match="data: ") as caught:
            load_prompts(TrainConfig(data=str(tmp_path / name), prompt_column=column))
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_reasoning_gym_brings_its_questions_and_its_own_score():
    require("reasoning_gym")
    prompts = load_prompts(TrainConfig(data="reasoning-gym:chain_sum", seed=5))
    (row,) = prompts.of_step(4, 1)
    rewards = Rewards(("reasoning-gym",), prompts, 10.0)
    score = rewards.of_rows([row])((), [prompts.text(row)] * 2, (row["answer"], "no idea"), ("stop", "stop"))
    assert score[0] == (1.0,) and score[1][0] < 1
    with pytest.raises(ValueError, match="data: reasoning-gym knows no task 'nonsense'"):
        load_prompts(TrainConfig(data="reasoning-gym:nonsense"))
    with pytest.raises(ValueError, match="found 'reasoning-gym', which needs data = 'reasoning-gym:TASK'"):
        Rewards(("reasoning-gym",), load_prompts(TrainConfig()), 10.0)


def test_an_evaluation_is_scored_as_its_own_data_says():
    # another way to write the answer is right in a countdown and wrong in a sum
    require("reasoning_gym")
    task = {"data": "reasoning-gym:chain_sum", "eval_data": "reasoning-gym:countdown", "eval_prompts": 1, "seed": 2}
    task["max_completion_length"] = 4  # the question leaves room for 7 tokens
    trainer = Trainer(TrainConfig(reward_functions=("reasoning-gym",), reward_weights=(1.0,), **task))
    (row,) = trainer.eval_prompts.first(1)
    answers = (f"({row['answer']})", row["answer"])
    scores = [each.of_rows([row])((), [""] * 2, answers, ("stop",) * 2) for each in (trainer.rewards, trainer.eval_rewards)]
    assert scores[0][0][0] < 1 and scores[0][1] == (1.0,) and scores[1] == ((1.0,), (1.0,))


def test_an_evaluation_asks_the_first_rows_of_its_own_data(jsonl):
    settings = {"reward_functions": ("correct",), "reward_weights": (1.0,), "max_completion_length": 2}
    trainer, asked = Trainer(TrainConfig(eval_data=str(jsonl), eval_prompts=3, **settings)), []
    trainer.eval_rewards.functions = [lambda texts, answers, ends, rows: asked.extend(rows) or [7.0] * len(rows)]
    assert trainer.evaluate()["eval/reward"] == 7.0 and asked == [row for row in QUESTIONS[:3] for _ in range(4)]


@pytest.fixture
def one_too_long(tmp_path):
    """Seven short questions, and one of about 400 tokens; the built-in model reads 256."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [*QUESTIONS, {"prompt": "1 + " * 200}])))
    return path


@pytest.mark.parametrize("name", ["data", "eval_data"])
def test_a_prompt_without_room_for_an_answer_is_refused_before_anything_is_sampled(one_too_long, tmp_path, capsys, name):
    settings = {"out": tmp_path / "out", "steps": 8, "prompts_per_step": 1, "group_size": 2, name: one_too_long}
    assert main(["train", *(f"--set={key}={value}" for key, value in settings.items())]) == 2
    error = capsys.readouterr().err
    assert error.startswith(name) and "tokens, allowed: 240 (the model reads 256" in error and error.count("\n") == 1


def test_prompts_that_the_run_never_asks_are_not_read(one_too_long):
    settings = {"data": str(one_too_long), "prompts_per_step": 1, "group_size": 2}
    orders = {seed: load_prompts(TrainConfig(seed=seed, **settings)).of_step(0, 8) for seed in range(20)}
    late = next(seed for seed, rows in orders.items() if len(rows[7]["prompt"]) > 100)
    Trainer(TrainConfig(seed=late, steps=7, **settings))
    with pytest.raises(ValueError, match="data, from step 0 on: prompt 8 has"):
        Trainer(TrainConfig(seed=late, steps=8, **settings))
