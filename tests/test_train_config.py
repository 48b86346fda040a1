"""Settings of a run: read, refused in one line before any time is spent, and what they say of each step."""

import math
import sys
from dataclasses import replace

import pytest
from processes import started

from grpo_core.__main__ import main
from grpo_core.presets import preset
from grpo_core.train_config import TrainConfig, from_toml, from_values

NOWHERE = "--set=model=/no/such/folder"  # would be the complaint, if anything were loaded first


def refused(capsys, tmp_path, *settings: str) -> str:
    """What the command says to settings that it does not take; it leaves no folder behind."""
    out = tmp_path / "out"
    assert main(["train", NOWHERE, f"--set=out={out}", *(f"--set={text}" for text in settings)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.out == "" and "Traceback" not in said.err and not out.exists()
    return said.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        # names and types
        (["learning_rat=1e-3"], "learning_rat: unknown setting; did you mean 'learning_rate'?"),
        (["xyzzy=1"], "xyzzy: unknown setting\n"),
        (["steps"], "--set: found 'steps', allowed: name=value"),
        (["steps=true"], "steps: found True, allowed: a whole number from 1"),
        (["learning_rate=nan"], "learning_rate: found nan, allowed: 0 to 10"),
        (['reward_functions=["correct", "correct"]'], "reward_functions: found ('correct', 'correct'), allowed: "),
        (
            ['reward_functions=["correct"]', "reward_weights=[1.0, 0.2]"],
            "reward_weights: found 2 weights for 1 reward_functions, allowed: one each",
        ),
        (["preset=trl/nothing"], "preset: found 'trl/nothing', allowed: one of "),
        # values
        (["clip_low=-0.1"], "clip_low: found -0.1, allowed: 0 to 1"),
        (["steps=0"], "steps: found 0, allowed: a whole number from 1"),
        (["group_size=0"], "group_size: found 0, allowed: a whole number from 1 to 4096"),
        (["scoring=fast"], "scoring: found 'fast', allowed: auto, packed, padded"),
        (["schedule=step"], "schedule: found 'step', allowed: constant, linear, cosine"),
        (["reward_timeout=0.0"], "reward_timeout: found 0.0, allowed: above 0 seconds"),
        (["dtype=float16"], "dtype: found 'float16', allowed: float32, bfloat16"),
        # settings that do not go together
        (["beta=0.1", "reference=none"], "reference: found 'none' with beta 0.1, allowed: start, or beta 0"),
        (
            ["reward_kl=after", "reward_kl_coef=0.2", "reference=none"],
            "reference: found 'none' with reward_kl_coef 0.2, allowed: start, or reward_kl_coef 0",
        ),
        (
            ["prompts_per_step=2", "group_size=2", "minibatches=5"],
            "minibatches: found 5, allowed: at most the 4 rows of a step",
        ),
        (["data=prompts", "prompts=[]"], "prompts: found none, needed where data is 'prompts'"),
        (["warmup_steps=10", "steps=10"], "warmup_steps: found 10, allowed: below the 10 steps"),
        (["trace_steps=[7]", "steps=7"], "trace_steps: found 7, allowed: 0 to 6"),
        (
            ["trace_steps=[0]", "prompts_per_step=9"],
            "trace_steps: found 9 prompts x 4, allowed for a lesson: at most 8 prompts",
        ),
        (["trace_steps=[0]", "dtype=float64"], "trace_steps: found with dtype float64, allowed for a lesson: float32"),
        (["trace_steps=[0]", "lora_rank=2"], "trace_steps: found with lora_rank 2, allowed for a lesson: without"),
        (["trace_steps=[0]", "micro_batch_rows=2"], "trace_steps: found with minibatches or micro_batch_rows, allowed"),
        (
            ["trace_steps=[0]", 'reward_functions=["m:f"]', "reward_weights=[1.0]"],
            "trace_steps: found the reward function 'm:f', allowed for a lesson: correct, format",
        ),
    ],
)
def test_a_setting_that_cannot_be_run_is_one_line_and_status_2(capsys, tmp_path, settings, said):
    assert said in refused(capsys, tmp_path, *settings)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("steps=many", "steps: found 'many', allowed: a whole number from 1"),
        ("steps=2.5", "steps: found 2.5, allowed: a whole number from 1"),
        ("steps=[1]", "steps: found (1,), allowed: a whole number from 1"),
        ("autocast=1", "autocast: found 1, allowed: true or false"),
        ("clip_high=high", "clip_high: found 'high', allowed: -1 to 100"),
        ("reward_functions=correct", "reward_functions: found 'correct', allowed: different texts: correct, format, "),
        ("prompts=hello", "prompts: found 'hello', allowed: texts, none empty"),
        ("trace_steps=3", "trace_steps: found 3, allowed: whole numbers from 0"),
        ("trackers=[1]", "trackers: found (1,), allowed: names that accelerate knows"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path, setting, said):
    # in a process of its own: the shape checks of the tests would refuse it first
    process = started(["train", NOWHERE, f"--set=out={tmp_path / 'out'}", f"--set={setting}"], tmp_path / "log")
    process.join(60)
    error = (tmp_path / "log").read_text(encoding="utf-8")
    assert process.exitcode == 2 and error.startswith(said) and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_lora_without_peft_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    assert main(["train", f"--set=out={tmp_path / 'out'}", "--set=lora_rank=4"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "lora_rank: found 4, which needs the package peft (pip install peft)" and not (tmp_path / "out").exists()


def test_a_file_that_is_missing_or_no_toml_is_refused(capsys, tmp_path):
    assert main(["train", "--config", str(tmp_path / "none.toml")]) == 2
    assert capsys.readouterr().err == f"config: found no file {str(tmp_path / 'none.toml')!r}\n"
    path = tmp_path / "bad.toml"
    for text, said in (
        ("steps = ", "cannot be read as TOML"),
        ("steps = 1\n[run]\nsteps = 2", "steps: found twice in the file"),
    ):
        path.write_text(text, encoding="utf-8")
        assert main(["train", "--config", str(path)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


# ---- read ------------------------------------------------------------------------------------------------------------------
def test_tables_of_a_file_only_group_its_settings(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'steps = 7\n[loss]\naggregation = "token-mean"\nbeta = 0.5\n[data]\nprompts = ["1 + 1"]\n', encoding="utf-8"
    )
    config = from_toml(path, ["beta=0.25", "out = elsewhere", "trace_steps=[1, 3]", "edited_rewards=[]"])
    assert (config.steps, config.aggregation, config.beta) == (7, "token-mean", 0.25)
    assert config.prompts == ("1 + 1",) and config.out == "elsewhere" and config.trace_steps == (1, 3)


def test_a_presets_settings_come_first_and_what_is_named_on_top():
    config = from_values({"preset": "verl"}, ["clip_high=0.31"])
    values = preset("verl").values()
    assert config.clip_high == 0.31 != values["clip_high"] and config.preset == "verl"
    assert all(getattr(config, name) == value for name, value in values.items() if name != "clip_high")


def test_a_run_may_be_larger_than_a_lesson():
    config = TrainConfig(prompts_per_step=512, group_size=64, max_completion_length=4096)
    assert config.at_step(3, ("1 + 1",) * 512).prompts == ("1 + 1",) * 512
    with pytest.raises(ValueError, match="group_size: found 128, allowed: a whole number from 1 to 64"):
        TrainConfig(group_size=128).recipe()


# ---- what they say of a step -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        # rate 8, 8 steps; warm-up of 4: 2, 4, 6, 8; then the share that is done of the remaining 4 is 0, 1/4, 2/4, 3/4
        ("constant", 0, [8.0] * 8),
        ("constant", 4, [2, 4, 6, 8, 8, 8, 8, 8]),
        ("linear", 0, [8, 7, 6, 5, 4, 3, 2, 1]),
        ("linear", 4, [2, 4, 6, 8, 8, 6, 4, 2]),
        ("cosine", 4, [2, 4, 6, 8, *(4 * (1 + math.cos(math.pi * part / 4)) for part in range(4))]),
    ],
)
def test_the_learning_rate_rises_over_the_warm_up_and_follows_the_schedule(schedule, warmup, expected):
    config = TrainConfig(learning_rate=8.0, steps=8, warmup_steps=warmup, schedule=schedule)
    assert [config.learning_rate_at(step) for step in range(8)] == pytest.approx(expected)
    assert config.at_step(5, ("1 + 1",)).learning_rate == pytest.approx(expected[5])


def test_each_step_has_its_own_seed_which_follows_from_the_runs():
    config = TrainConfig(seed=3)
    seeds = [config.at_step(step, ("1 + 1",)).seed for step in range(50)]
    assert len(set(seeds)) == 50 and seeds[:2] == [3 * 1_000_003, 3 * 1_000_003 + 7919]
    assert config.at_step(10**6, ("1 + 1",)).seed < 2**31
    assert replace(config, steps=2000, out="elsewhere").at_step(49, ("1 + 1",)).seed == seeds[-1]
    assert replace(config, seed=4).at_step(49, ("1 + 1",)).seed not in seeds
