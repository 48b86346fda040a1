"""The training loop: prompts -> `sample` -> `grpo_step`, the very functions of the lessons, and what a run keeps.

    for record in Trainer(config).run(): ...

Every step follows from the config, the weights and the step's number: a resumed run is the uninterrupted one, bit for bit
on one machine, and so is a run shared by several processes up to rounding.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .advantages import group_advantages
from .checkpoint import WRITE_ERRORS, Checkpoint
from .data import READ_AHEAD, Row, load_prompts, refuse_long_prompts
from .engine import LOCAL, Engine
from .loading import add_adapters, load_policy
from .packing import Scoring, choose_scoring
from .policy import AdaptersOff, Policy
from .rewards import Rewards
from .rollout import draws_of, rows_of, sample, to_batch, widened
from .run_metrics import reward_metrics, update_metrics
from .samplers import SAMPLERS
from .snapshot import save_snapshot
from .step import grpo_step, make_optimizer, rewards_after_edits
from .train_config import TrainConfig
from .types import Rollout, StepTrace


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One finished step. The trace is this process's; the metrics are of all."""

    step: int
    config: TrainConfig  # with this step's prompts, seed and learning rate
    rollout: Rollout
    trace: StepTrace | None  # None where every group was dropped
    metrics: dict[str, float]


class Trainer:
    """One run. Everything that can be refused is refused here, before any time is spent."""

    def __init__(
        self, config: TrainConfig, engine: Engine = LOCAL, checkpoint: Checkpoint | None = None, policy: Policy | None = None
    ):
        """`checkpoint` goes on from there. `policy` takes the place of `config.model`: it is the reference, and a copy is
        trained; without a reference it is trained itself."""
        if config.prompts_per_step % engine.processes:
            raise ValueError(
                f"prompts_per_step: found {config.prompts_per_step} for {engine.processes} processes, allowed: a multiple"
            )
        rows = config.prompts_per_step * config.group_size // engine.processes
        if config.minibatches > rows:
            raise ValueError(f"minibatches: found {config.minibatches}, allowed: at most the {rows} rows of a process")
        self.config, self.engine, self.step = config, engine, 0
        self.sampler = SAMPLERS[config.sampler](config, engine)
        self.prompts = load_prompts(config)
        self.eval_prompts = load_prompts(config, config.eval_data) if config.eval_data else self.prompts
        self.rewards = Rewards(config.reward_functions, self.prompts, config.reward_timeout)
        self.eval_rewards = self.rewards
        if config.eval_data:  # the data's own score is that of the evaluation's
            self.eval_rewards = Rewards(config.reward_functions, self.eval_prompts, config.reward_timeout)
            self.eval_rewards.failures = self.rewards.failures
        if config.threads:
            torch.set_num_threads(config.threads)
        self.policy, self.reference = self._load(policy, checkpoint)
        self.policy = engine.prepare(self.policy, config)
        self.reference = engine.prepare_reference(self.reference, self.policy, config)
        self.optimizer = make_optimizer(self.policy, config, config.weight_decay)
        self.optimizer = engine.prepare_optimizer(self.policy, self.optimizer, config)
        self.notes = self.rewards.failures  # lines about what went wrong on the way and did not stop the run
        self.scoring: Scoring | None = None
        self.best = -float("inf")
        if checkpoint:
            self._go_on(checkpoint)
        self._refuse_long_prompts()
        self.sampler.prove(self.policy, self.step)

    def _load(self, policy: Policy | None, checkpoint: Checkpoint | None) -> tuple[Policy, Policy | None]:
        config, dtype, kl = self.config, getattr(torch, self.config.dtype), needs_reference(self.config)

        def first() -> Policy:
            return policy or load_policy(config.model, dtype)

        if config.lora_rank:
            trained = add_adapters(first(), config.lora_rank, config.lora_alpha, config.lora_targets, config.seed)
            reference = AdaptersOff(trained) if kl else None
            if checkpoint:
                trained.load_adapters(checkpoint.model)
        else:
            reference = first() if kl else None
            if checkpoint:
                trained = load_policy(str(checkpoint.model), dtype)
            else:
                trained = reference.clone() if reference else first()
        if config.gradient_checkpointing:
            trained.checkpoint_activations()
        return trained, reference

    def _refuse_long_prompts(self) -> None:
        """Of those that the run asks first, and of the evaluation's."""
        config, start = self.config, self.step * self.config.prompts_per_step
        asked = self.prompts.between(start, min(start + READ_AHEAD, config.steps * config.prompts_per_step))
        refuse_long_prompts(self.policy, self.prompts, asked, f"data, from step {self.step} on", config)
        if config.eval_data:
            found = self.eval_prompts.first(config.eval_prompts)
            refuse_long_prompts(self.policy, self.eval_prompts, found, "eval_data", config)

    def _go_on(self, checkpoint: Checkpoint) -> None:
        self.step, self.best = checkpoint.state["step"], checkpoint.state["best"]
        self.engine.load_optimizer(self.policy, self.optimizer, checkpoint.optimizer())
        if scoring := checkpoint.state["scoring"]:
            self._use(Scoring(**scoring | {"seconds": tuple(scoring["seconds"])}))

    def _use(self, scoring: Scoring) -> None:
        self.scoring = scoring
        for policy in (self.policy, self.reference):
            if policy:
                scoring.use(policy)

    def _choose(self, rollout: Rollout, config: TrainConfig) -> Scoring:
        """On every sampled row, trained or not, and in the weights' own precision."""
        exact = torch.autocast(self.policy.device.type, enabled=False)
        with self.engine.whole_weights(self.policy), exact:
            return choose_scoring(self.policy, to_batch(rollout, config.layout), config.temperature, config.scoring)

    # ---- the loop ----------------------------------------------------------------------------------------------------------
    def run(self) -> Iterator[StepRecord]:
        """The steps that are left. Whoever stops asking stops the run."""
        while self.step < self.config.steps:
            record = self.one_step()
            self.step += 1
            yield record

    def one_step(self) -> StepRecord:
        """Sample, reward, train: the step that `self.step` says."""
        start = time.perf_counter()
        rows = self._share(self.prompts.of_step(self.step, self.config.prompts_per_step))
        config = self.config.at_step(self.step, tuple(map(self.prompts.text, rows)))
        rollout = self.sample_rows(rows, config)
        sampled = time.perf_counter()
        kept = without_zero_std(rollout, config) if config.drop_zero_std else rollout
        if self.scoring is None:
            self._use(self.engine.agreed(self._choose(rollout, config)))
        if self.step in self.config.trace_steps:
            self.snapshot(kept, config)
        trace = self._train(kept, config)
        if trace and not all(update.applied for update in trace.updates):
            self.notes.append("an optimizer step was left out: its gradient is not finite")
        seconds = {"seconds/sample": sampled - start, "seconds/train": time.perf_counter() - sampled}
        metrics = reward_metrics(rollout, config, self.engine) | seconds | {"learning_rate": config.learning_rate}
        metrics |= update_metrics(trace, self.engine) if trace else {"skipped": 1.0}
        return StepRecord(step=self.step, config=config, rollout=rollout, trace=trace, metrics=metrics)

    def _train(self, rollout: Rollout, config: TrainConfig) -> StepTrace | None:
        if not self.engine.most(int(rollout.completion_mask.any())):
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate
        if config.drop_zero_std:
            config = replace(config, count_empty_rows=False)
        fewest = -self.engine.most(-len(rollout.completions))  # where groups were dropped, perhaps fewer than minibatches
        return grpo_step(
            self.policy, self.reference, rollout, config, self.optimizer, engine=self.engine,
            minibatches=min(config.minibatches, fewest), micro_batch_rows=config.micro_batch_rows, keep_hidden=False,
        )  # fmt: skip

    def snapshot(self, rollout: Rollout, config: TrainConfig, folder: Path | None = None) -> None:
        """Keep the step that is about to be taken on this rollout for the lessons."""
        folder = folder or Path(self.config.out) / f"step-{self.step:08d}"
        reference = self.config.model if self.reference else None
        weights = self.engine.weights(self.policy)
        optimizer = self.engine.optimizer_state(self.policy, self.optimizer)
        if self.engine.process == 0:
            recipe, decay = config.recipe(), config.weight_decay
            try:
                save_snapshot(folder, self.step, self.policy, reference, weights, optimizer, recipe, rollout, decay)
            except WRITE_ERRORS as error:
                self.notes.append(f"the step could not be kept in {folder} ({str(error)[:200]})")

    def sample_rows(self, rows: list[Row], config: TrainConfig, rewards: Rewards | None = None) -> Rollout:
        """Completions of these prompts, this process's share of the step's, with their rewards. As wide as the widest of
        any process: an aggregation may count the columns."""
        size = config.group_size
        prompts = self._share(list(range(len(rows) * self.engine.processes)))
        places = [prompt * size + place for prompt in prompts for place in range(size)]
        draws = draws_of(config, len(places) * self.engine.processes)[places]
        scores = (rewards or self.rewards).of_rows(rows)
        with self.sampler.following(self.policy, self.step):
            rollout = sample(self.policy, config.prompts, config, scores, draws, self.sampler.generate)
        widths = [self.engine.most(mask.shape[1]) for mask in (rollout.prompt_mask, rollout.completion_mask)]
        return widened(rollout, widths[0], widths[1], self.policy.pad_id)

    def _share(self, items: list[Any]) -> list[Any]:
        """This process's. Where it can be, an equal part of each minibatch, which is then the same however many share it."""
        engine, parts = self.engine, self.config.minibatches
        parts = 1 if len(items) % (parts * engine.processes) else parts
        size = len(items) // (parts * engine.processes)
        starts = [(part * engine.processes + engine.process) * size for part in range(parts)]
        return [item for start in starts for item in items[start : start + size]]

    def evaluate(self) -> dict[str, float]:
        """Rewards of the current weights on the first prompts of the evaluation's data, always with the run's own seed."""
        processes, found = self.engine.processes, self.eval_prompts.first(self.config.eval_prompts)
        rows = self._share(found[: len(found) // processes * processes] or (found * processes)[:processes])
        config = replace(self.config, prompts=tuple(map(self.eval_prompts.text, rows)))
        numbers = reward_metrics(self.sample_rows(rows, config, self.eval_rewards), config, self.engine)
        return {f"eval/{name}": value for name, value in numbers.items()}

    def state(self) -> dict[str, Any]:
        """What a checkpoint says beside weights and optimizer."""
        scoring = vars(self.scoring) if self.scoring else None
        return {"step": self.step, "best": self.best, "scoring": scoring, "config": vars(self.config)}


def needs_reference(config: TrainConfig) -> bool:
    """Whether a KL to the first weights enters the loss or the reward."""
    in_loss = config.beta != 0 and config.kl_against == "ref"
    return config.reference != "none" and (in_loss or config.reward_kl != "none")


def without_zero_std(rollout: Rollout, config: TrainConfig) -> Rollout:
    """The rollout without the groups whose rewards are all equal: they have no advantage. Where none is left, nothing of it
    is trained."""
    rewards = rewards_after_edits(rollout, config)
    zero_std = group_advantages(rewards, config.reward_weights, rollout.group_ids, config.advantage_config()).zero_std
    kept = (~zero_std).nonzero().squeeze(1)
    if not len(kept):
        return replace(rollout, completion_mask=torch.zeros_like(rollout.completion_mask))
    return rows_of(rollout, kept)
