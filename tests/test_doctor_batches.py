"""The doctor of a batch file: each check fires on a fault, with its place and numbers, and lets a near miss pass."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from broken import NEAR, RED
from broken_batches import BATCH_RED, FIRST, LATER, TOOL, at, but, case, printed, with_meta
from near_batches import BATCH_NEAR
from sound_batches import sound_batches
from test_cases import alike

from grpo_core import CHECKS, Batch, Evidence, diagnose, load_policy, run_checks, save_batch
from grpo_core.__main__ import main
from grpo_core.doctor import in_order


def found_by(batch, name):
    (outcome,) = run_checks(Evidence(batch=batch), [CHECKS[name]])
    return outcome.findings


def test_every_check_of_a_batch_has_a_red_and_a_near_case():
    assert set(BATCH_RED) == set(BATCH_NEAR)
    assert set(BATCH_RED) | set(RED) == set(CHECKS) and set(NEAR) == set(RED)


@pytest.mark.parametrize("name", BATCH_RED)
def test_a_broken_batch_is_marked_where_it_is_broken(name):
    red = BATCH_RED[name]
    findings = found_by(red.batch, name)
    assert red.severity in [finding.severity for finding in findings]
    report = diagnose(red.batch).as_json(red.batch)["findings"]
    mine = next(f for f in report if f["check"] == name and f["severity"] == red.severity)
    assert not red.rows or set(mine["rows"]) == set(red.rows)
    assert not red.tokens or set(map(tuple, mine["tokens"])) == set(red.tokens)
    for key, value in red.expected.items():
        right = mine["expected"][key]
        assert alike(value, right) or torch.allclose(torch.tensor(value), torch.tensor(right), atol=2e-4), (key, right)


@pytest.mark.parametrize("name", BATCH_NEAR)
def test_a_near_miss_is_let_pass(name):
    assert not found_by(BATCH_NEAR[name], name)


def test_a_report_is_plain_json_with_what_passed_and_what_was_skipped():
    batch = but(FIRST, policy_logprobs=at((0, 7), float("nan")))
    report = json.loads(json.dumps(diagnose(batch).as_json(batch), allow_nan=False))
    assert set(report) == {"findings", "passed", "skipped"} and "ids_in_vocab" in report["passed"]
    assert {"check": "logprob_hypotheses", "needs": ["logits or --model"]} in report["skipped"]
    names = {f["check"] for f in report["findings"]} | set(report["passed"]) | {s["check"] for s in report["skipped"]}
    assert names <= set(CHECKS) and "update_applied" not in names
    (finding,) = (f for f in report["findings"] if f["check"] == "nonfinite_under_mask0")
    assert finding["found"]["policy_logprobs"] == ["NaN"] and finding["tokens"] == [[0, 7]]


def test_a_token_is_a_place_in_the_tensor_that_the_file_has():
    columns = case(TOOL).trained_mask().shape[1]
    broken = but(TOOL, sampler_logprobs=at((0, 6), -float("inf")))
    (finding,) = found_by(broken, "rollout_logprob_finite")
    assert finding.tokens == ((0, 7),) and columns == 17
    (other,) = found_by(but(FIRST, sampler_logprobs=at((3, 1), -float("inf"))), "rollout_logprob_finite")
    assert other.tokens == ((3, 7),)  # six prompt columns before it


def test_errors_come_first_and_their_cause_before_them():
    both = printed(FIRST, but(FIRST, completion_mask=at((1, 4), False)), num_items=64, loss=0.5)
    names = [f.check for f in diagnose(both).findings]
    assert names.index("eos_in_mask") < names.index("denominator_matches_mask")
    severities = [f.severity for f in diagnose(both).findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    mixed = diagnose(case("A07")).findings
    assert in_order(reversed(mixed)) == mixed


def test_a_sampler_that_is_off_after_updates_is_nobodys_fault():
    drifted = case(FIRST).sampler_logprobs - 0.4
    assert not found_by(with_meta(FIRST, but(FIRST, sampler_logprobs=drifted), iteration=1), "sampler_logprobs_match")
    assert not found_by(replace(but(FIRST, sampler_logprobs=drifted), meta={}), "sampler_logprobs_match")


def test_what_the_file_does_not_say_is_not_held_against_it():
    for name in (FIRST, LATER, TOOL):
        bare = replace(case(name), meta={}, finish_reasons=None, reported={})
        assert not [f for f in diagnose(bare).findings if f.severity != "info"]


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_our_own_raise_no_error(policy, recipe, seed):
    for drawn, batch in sound_batches(policy, recipe, 4, seed):
        assert not [f for f in diagnose(batch).findings if f.severity == "error"], drawn


def test_the_command_says_it_in_words_and_as_json(tmp_path, capsys):
    path = Path(tmp_path) / "broken.json"
    save_batch(but(FIRST, completion_mask=at((1, 4), False)), str(path))
    assert main(["doctor", str(path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("error    eos_in_mask: 3 of 4 finished rows") and "tokens [1, 4] of completion_mask" in said
    assert main(["doctor", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["check"] == "eos_in_mask"
    save_batch(case(FIRST), str(path))
    assert main(["doctor", str(path)]) == 0
    assert main(["doctor", str(Path(__file__).parent / "data" / "imports" / "slime.pt")]) == 0  # another tool's dump


def test_a_file_that_cannot_be_read_and_a_preset_that_does_not_exist_are_status_2(tmp_path, capsys):
    path = tmp_path / "no.json"
    path.write_text("{", encoding="utf-8")
    assert main(["doctor", str(path)]) == 2 and capsys.readouterr().err.count("\n") == 1
    save_batch(case(FIRST), str(path))
    assert main(["doctor", str(path), "--preset", "trll"]) == 2 and "nearest: trl" in capsys.readouterr().err


def test_the_doctor_runs_as_a_command(tmp_path):
    path = tmp_path / "sound.json"
    save_batch(case(FIRST), str(path))
    run = subprocess.run([sys.executable, "-m", "grpo_core", "doctor", str(path), "--json"], capture_output=True, text=True)
    assert run.returncode == 0 and json.loads(run.stdout)["findings"]


def test_with_a_tokenizer_it_is_said_which_ids_their_own_text_would_not_give():
    """` +` is one token; sampled as a space and a plus it is right to train, and would be lost in an encoding."""
    tiny = load_policy()
    whole = tiny.tokenizer("3 + 4", add_special_tokens=False).input_ids
    split = tiny.tokenizer.convert_tokens_to_ids(["\u0120", "+"])
    apart = whole[:1] + split + whole[2:]
    assert tiny.piece(whole[1]) == " +" and tiny.decode(apart) == tiny.decode(whole) and apart != whole
    end = sorted(tiny.eos_ids)
    rows = [whole + end + end, apart + end]
    batch = Batch(
        prompt_ids=torch.tensor([[23], [23]]), prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        completion_ids=torch.tensor(rows),
        completion_mask=torch.tensor([[True] * 4 + [False], [True] * 5]),
    )  # fmt: skip
    (outcome,) = run_checks(Evidence(batch=batch, policy=tiny), [CHECKS["retokenisation_drift"]])
    (finding,) = outcome.findings
    assert finding.severity == "info" and finding.rows == (1,) and finding.tokens == ((1, 2),)
    assert finding.found == {"encoded_again[1]": whole} and finding.expected == {"completion_ids[1]": apart}
    assert run_checks(Evidence(batch=batch), [CHECKS["retokenisation_drift"]])[0].status == "skipped"
