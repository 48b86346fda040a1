"""What answers are worth in a run: functions from Python, reward models, and what happens where they fail."""

import json

import pytest
import torch
from builders import BOS, EOS, PAD, QUESTIONS, byte_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from grpo_core.__main__ import main
from grpo_core.data import load_prompts
from grpo_core.rewards import Rewards, short_names
from grpo_core.train_config import TrainConfig


@pytest.fixture
def functions(tmp_path):
    """name -> FILE.py:name; each goes wrong in its own way, some of them only where the answer is not the trial's '0'."""
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS, encoding="utf-8")
    return lambda name: f"{path}:{name}"


FUNCTIONS = """
import json, time
from pathlib import Path

def columns(prompts, completions, answer, level, finish_reasons, **more):
    with Path(__file__).with_name("seen").open("a") as file:
        print(json.dumps([prompts, completions, answer, level, finish_reasons, sorted(more)]), file=file)
    return [float(a == c) for a, c in zip(answer, completions)]

def few(completions):
    return [len(text) for text in completions]

def raises(**all):
    raise KeyError("no such thing")

def hangs(prompts, **all):
    time.sleep(30)

def short(completions, **all):
    return [1.0] * (len(completions) + 1)

def words(completions, **all):
    return ["good"] * len(completions)

def waits(prompts, completions, **all):
    if "4 + 1" in prompts:
        time.sleep(30)
    return [1.0] * len(completions)

def infinite(completions, **all):
    return [float("inf")] * len(completions)

def leaves(**all):
    raise SystemExit(3)

def asks_neighbour(completions, hint=None, **all):
    import neighbour_of_mine
    return [neighbour_of_mine.VALUE if row is None else 0.0 for row in hint]

number = 3

def nothing(**all):
    pass

def silent(completions, **all):
    return [None] * len(completions)

def sometimes(prompts, completions, **all):
    if "5 + 1" in prompts and completions != ["0"]:
        raise RuntimeError("five is too much")
    return [1.0] * len(completions)
"""


def rewards_of(prompts, *names: str, timeout: float = 10.0) -> Rewards:
    return Rewards(names, prompts, timeout)


def test_a_function_is_called_with_the_columns_of_its_rows_as_in_trl(jsonl, functions, tmp_path):
    prompts = load_prompts(TrainConfig(data=str(jsonl)))
    rewards = rewards_of(prompts, functions("columns"), functions("few"), "correct")
    texts, answers = ["2 + 1", "2 + 1", "4 + 1", "4 + 1"], ("3", "4", "5.", "5")
    found = rewards.of_rows([QUESTIONS[2], QUESTIONS[4]])((), texts, answers, ("stop", "length", "stop", "stop"))
    # answers 3 and 5, exactly; length; the last number
    assert found == ((1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 2.0, 1.0), (1.0, 1.0, 1.0))
    trial, call = map(json.loads, (tmp_path / "seen").read_text(encoding="utf-8").splitlines())
    assert call == [texts, list(answers), ["3", "3", "5", "5"], [2, 2, 1, 1], ["stop", "length", "stop", "stop"], []]
    assert trial == [["0 + 1"], ["0"], ["1"], [0], ["stop"], []]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raised KeyError: 'no such thing', tried on '0 + 1' with the answer '0'"),
        ("hangs", "gave no answer within 0.3 s, tried on '0 + 1' with the answer '0'"),
        ("short", "returned 2 values for 1 rows, tried on"),
        ("words", "returned ['good'], not numbers, tried on"),
        ("infinite", "returned inf, allowed: finite numbers and None, tried on"),
        ("leaves", "raised SystemExit: 3, tried on"),
        ("number", "cannot be imported (TypeError: 3 is not a callable object)"),
        ("nothing", "raised TypeError: 'NoneType' object is not iterable, tried on"),
        ("missing", "cannot be imported (AttributeError: module 'mine' has no attribute 'missing')"),
    ],
)
def test_a_function_that_does_not_work_is_refused_before_any_time_is_spent(jsonl, functions, capsys, tmp_path, name, said):
    settings = {"model": "/no/such/folder", "data": jsonl, "reward_functions": json.dumps([functions(name)]),
                "reward_weights": "[1.0]", "reward_timeout": 0.3, "out": tmp_path / "out"}  # fmt: skip
    assert main(["train", *(f"--set={key}={value}" for key, value in settings.items())]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"reward_functions: {functions(name)!r} {said}") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nonsense",
            "found 'nonsense', allowed: correct, format, reasoning-gym, module:function, FILE.py:function, model:FOLDER",
        ),
        ("no.such.module:f", "'no.such.module:f' cannot be imported (ModuleNotFoundError: No module named 'no')"),
        ("/no/such/file.py:f", "'/no/such/file.py:f' cannot be imported (FileNotFoundError: "),
        ("model:/no/such/folder", "'model:/no/such/folder' is no reward model ("),
    ],
)
def test_a_name_behind_which_there_is_nothing_is_refused(name, said):
    with pytest.raises(ValueError, match="reward_functions: ") as caught:
        rewards_of(load_prompts(TrainConfig()), name)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_call_that_fails_later_names_its_prompt_and_the_run_goes_on(jsonl, functions, tmp_path, capsys):
    settings = {"data": jsonl, "reward_functions": json.dumps([functions("sometimes"), functions("silent")]), "steps": 1,
                "prompts_per_step": 7, "group_size": 2, "max_completion_length": 3, "out": tmp_path / "out"}  # fmt: skip
    assert main(["train", *(f"--set={key}={value}" for key, value in settings.items())]) == 0
    said = f"step 0: {functions('sometimes')} raised RuntimeError: five is too much on '5 + 1'; its rows have no reward"
    assert said in capsys.readouterr().err
    (line,) = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["reward/sometimes"] == 1.0  # of the 12 rows that have one


def test_rows_of_a_failed_call_have_no_reward_and_the_others_keep_theirs(jsonl, functions):
    rewards = rewards_of(load_prompts(TrainConfig(data=str(jsonl))), functions("sometimes"))
    texts = ["2 + 1", "2 + 1", "5 + 1", "5 + 1"]
    found = rewards.of_rows([QUESTIONS[2], QUESTIONS[5]])((), texts, ("a", "b", "c", "d"), ("stop",) * 4)
    assert found == ((1.0,), (1.0,), (None,), (None,)) and len(rewards.failures) == 1


def test_a_call_that_hangs_costs_a_step_its_time_twice_and_not_once_for_each_prompt(jsonl, functions):
    rewards = rewards_of(load_prompts(TrainConfig(data=str(jsonl))), functions("waits"), timeout=0.3)
    texts = ["2 + 1", "2 + 1", "4 + 1", "4 + 1", "5 + 1", "5 + 1"]
    found = rewards.of_rows([QUESTIONS[2], QUESTIONS[4], QUESTIONS[5]])((), texts, ("a",) * 6, ("stop",) * 6)
    assert found == ((1.0,), (1.0,), (None,), (None,), (None,), (None,))
    assert [line.partition("waits ")[2] for line in rewards.failures] == [
        "gave no answer within 0.3 s on '4 + 1'; its rows have no reward",
        "was not asked about the 2 rows behind; they have no reward",
    ]


def test_a_column_that_no_row_of_a_call_has_is_handed_over_and_a_file_finds_its_neighbour(tmp_path, functions):
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 0.5")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1"}\n{"prompt": "2", "hint": "two"}\n', encoding="utf-8")
    prompts = load_prompts(TrainConfig(data=str(path)))
    rewards = rewards_of(prompts, functions("asks_neighbour"))
    found = [rewards.of_rows([row])((), ["1"], ("a",), ("stop",)) for row in prompts.rows]
    assert found == [((0.5,),), ((0.0,),)]


def test_names_for_logs_are_short_where_they_stay_different():
    assert short_names(["correct", "/a/b.py:right", "model:/x/y"]) == ["correct", "right", "y"]
    assert short_names(["a.py:f", "b.py:f", "m:g"]) == ["a.py:f", "b.py:f", "g"]


def test_a_reward_model_reads_prompt_and_completion(tmp_path):
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_labels=1, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, initializer_range=0.5,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rewards = rewards_of(load_prompts(TrainConfig()), f"model:{tmp_path}")
    found = rewards.of_rows([{}])((), ["1 + 1"] * 2, ("2", "three"), ("stop", "stop"))
    with torch.no_grad():
        expected = [float(model(torch.tensor([tokenizer("1 + 1" + text).input_ids])).logits) for text in ("2", "three")]
    assert [value for (value,) in found] == pytest.approx(expected, rel=1e-4) and expected[0] != pytest.approx(expected[1])
