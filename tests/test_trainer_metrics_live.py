"""The numbers that TRL, verl and Liger-Kernel log, each asked itself on random batches in fp64."""

import pytest
import torch
from batches import loss_batches
from hypothesis import assume, given, settings
from peers import PEERS, require
from test_liger import AS_IN_TRL
from test_liger import LIVE as LIGER
from test_trl_presets import ALLOWED
from test_trl_presets import LIVE as TRL
from test_verl import LIVE as VERL
from test_verl import ROLLOUT_IS, has_a_number
from trainers import liger_loss, trl_inputs, trl_loss, trl_trainer, verl_loss, verl_weights

from grpo_core.compare import evaluate
from grpo_core.presets import preset
from grpo_core.trainer_metrics import METRICS, trainer_metrics
from grpo_core.trainer_metrics.seen import Seen

pytestmark = pytest.mark.usefixtures("fp64")

TWELVE = settings(max_examples=12, deadline=None, derandomize=True, database=None)
ELSEWHERE = {"loss", "completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"}


def ours(batch, name, allowed=0):
    inputs, row = batch.inputs(allowed), preset(name)
    return {one.name: one.value for one in trainer_metrics(evaluate(inputs, row.convention()), inputs, row)}


def wide(batch):
    """Of a single column TRL counts masked slots as well. Its own model has log-probs and entropies of 0 there; the adapter
    hands it the batch's."""
    return batch.mask.shape[1] > 1


def assert_same_numbers(mine, theirs):
    """The last of each list; ours is 0 where TRL has NaN: a row's share where no row has a token."""
    for key, (*_, last) in theirs.items():
        assert mine[key] == (0 if last != last else pytest.approx(last, rel=1e-6, abs=1e-7)), key


@pytest.mark.parametrize("name", TRL)
def test_trl_logs_the_same(model_folder, name):
    require("trl")
    trainer = trl_trainer(model_folder, max_completion_length=ALLOWED, **TRL[name])

    @TWELVE
    @given(loss_batches(empty=False))
    def compare(batch):
        assume(wide(batch))
        trainer._metrics["train"].clear()
        inputs = trl_inputs(trainer, batch)
        theirs = dict(trainer._metrics["train"])
        theirs |= trl_loss(trainer, inputs, batch.policy_logprobs, batch.entropy)[1]
        mine = ours(batch, name, ALLOWED)
        per_function = {key for key in theirs if key.startswith("rewards/")}
        assert set(theirs) - per_function == set(mine) - ELSEWHERE
        assert_same_numbers(mine, {key: value for key, value in theirs.items() if key not in per_function})

    compare()


@pytest.mark.parametrize("name", [name for name in TRL if name != "trl/vllm"])
def test_trl_logs_the_same_where_rows_are_empty(model_folder, name):
    require("trl")
    trainer = trl_trainer(model_folder, max_completion_length=ALLOWED, **TRL[name])

    @TWELVE
    @given(loss_batches())
    def compare(batch):
        assume(wide(batch))
        theirs = trl_loss(trainer, trl_inputs(trainer, batch), batch.policy_logprobs, batch.entropy)[1]
        mine = ours(batch, name, ALLOWED)
        assert_same_numbers(mine, theirs)

    compare()


@pytest.mark.parametrize("name", VERL)
def test_verl_logs_the_same(name):
    require("verl", PEERS)

    @TWELVE
    @given(loss_batches(uneven=True))
    def compare(batch):
        advantages = evaluate(batch.inputs(), preset(name).convention()).advantages
        assume(has_a_number(name, batch, advantages))
        weights = verl_weights(batch, *ROLLOUT_IS[name]) if name in ROLLOUT_IS else None
        torch.manual_seed(0)  # clip_cov draws
        _, theirs = verl_loss(batch, batch.policy_logprobs, advantages, weights, **VERL[name])
        theirs = {f"actor/{key.removeprefix('actor/')}": value for key, value in theirs.items() if key != "kl_coef"}
        mine = ours(batch, name)
        assert set(mine) == set(theirs)
        for key, value in theirs.items():
            assert mine[key] == pytest.approx(float(value.aggregate()), rel=1e-6, abs=1e-7), key

    compare()


@pytest.mark.parametrize("name", [*LIGER, *AS_IN_TRL])
def test_liger_returns_the_same(name):
    require("liger_kernel", PEERS)
    config = (LIGER | AS_IN_TRL)[name]

    @TWELVE
    @given(loss_batches())
    def compare(batch):
        inputs, row = batch.inputs(ALLOWED), preset(name)
        evaluation = evaluate(inputs, row.convention())
        _, theirs = liger_loss(
            batch.policy_logprobs, batch.old_logprobs, batch.ref_logprobs, evaluation.advantages[:, 0], batch.mask, **config
        )
        as_liger = [metric for metric in METRICS["Liger-Kernel"] if metric.applies(row.convention())]
        mine = [metric.value(Seen(evaluation, inputs)) for metric in as_liger]
        assert mine == pytest.approx([float(value) for value in theirs], rel=1e-6, abs=1e-7)

    compare()
