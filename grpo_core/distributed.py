"""Many processes, one step: the only file that knows of accelerate and torch.distributed; DeepSpeed's part is `zero`.

accelerate brings process groups, devices, mixed precision and trackers. Every process scores its own rows through a wrapper
(`DistributedDataParallel`, or `fully_shard` where the weights are shared out); gradients are *summed* over processes, never
averaged, since the loss already has the denominators of all of them. accelerate's CPU mode turns a request for FSDP into
plain replicas without a word, so `fully_shard` is applied here.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)  # fmt: skip
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .engine import Engine
from .logprobs import score_tokens
from .policy import AdaptersOff, Policy
from .train_config import TrainConfig
from .types import Batch, Scored

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Scorer(nn.Module):
    """`score_tokens` as a module's forward pass: what wrappers hook into."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.model, self.policy = policy.model, policy

    def forward(self, batch: Batch, temperature: float, entropy_grad: bool) -> Scored:
        return score_tokens(self.policy, batch, temperature, entropy_grad)


def one_token(device: torch.device) -> Batch:
    """The smallest batch there is."""
    ids, mask = torch.zeros(1, 1, dtype=torch.long, device=device), torch.ones(1, 1, dtype=torch.bool, device=device)
    return Batch(prompt_ids=ids, prompt_mask=mask, completion_ids=ids, completion_mask=mask)


def units_of(scorer: nn.Module) -> list[FSDPModule]:
    """What is sharded as one; nothing where nothing is."""
    return [module for module in scorer.modules() if isinstance(module, FSDPModule)]


def sum_gradients(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore
    """DistributedDataParallel's communication: the sum, where it would divide by the number of processes."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class Processes(Engine):
    """The processes that `torchrun` or `accelerate launch` started, or a single one on a GPU or with trackers."""

    def __init__(self, config: TrainConfig):
        self.accelerator = Accelerator(
            cpu=not torch.cuda.is_available(), mixed_precision="bf16" if config.autocast else "no",
            log_with=list(config.trackers) or None, project_dir=config.out,
        )  # fmt: skip
        self.processes, self.process = self.accelerator.num_processes, self.accelerator.process_index
        self.sharded = config.sharding == "shard"
        self.scorers: dict[int, nn.Module] = {}
        if self.sharded and self.processes == 1:
            raise ValueError("sharding: found 'shard' with one process, allowed: replicate, or start with torchrun")
        if self.sharded and config.lora_rank:
            raise ValueError("sharding: found 'shard' with lora_rank, allowed: replicate with adapters")
        if config.trackers:
            self.accelerator.init_trackers("grpo", config={name: str(value) for name, value in vars(config).items()})

    # ---- weights -----------------------------------------------------------------------------------------------------------
    def prepare(self, policy: Policy, config: TrainConfig) -> Policy:
        policy.model.to(self.accelerator.device)
        scorer = Scorer(policy)
        if self.sharded:
            scorer = self._shard(scorer)
        elif self.processes > 1:
            scorer = DistributedDataParallel(scorer, forward_sync_buffers=False)
            scorer.register_comm_hook(None, sum_gradients)
        self.scorers[id(policy)] = scorer
        return policy

    def prepare_reference(self, reference: Policy | None, policy: Policy, config: TrainConfig) -> Policy | None:
        if reference is None or isinstance(reference, AdaptersOff):
            return reference  # the adapters' weights are the policy's own, already in place
        reference.model.requires_grad_(False).to(self.accelerator.device)
        scorer = Scorer(reference)
        self.scorers[id(reference)] = self._shard(scorer) if self.sharded else scorer
        return reference

    def _shard(self, scorer: Scorer) -> Scorer:
        """A unit for each decoder layer and one for the rest. All of a micro-batch in one pack: a process that made more
        passes than another would wait for it for ever."""
        scorer.policy.one_pack = True
        mesh = init_device_mesh(self.accelerator.device.type, (self.processes,))
        for layer in scorer.policy.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(scorer, mesh=mesh)
        for unit in units_of(scorer):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo knows no sum that is scaled on the way
        with torch.no_grad():  # whichever unit runs first takes itself for the root: it has to be the whole
            scorer(one_token(self.accelerator.device), 1.0, False)
        for unit in units_of(scorer):  # the root keeps its weights together behind a forward pass
            unit.reshard()
        return scorer

    @contextmanager
    def whole_weights(self, policy: Policy) -> Iterator[None]:
        units = units_of(self.scorers[id(policy)])
        for unit in units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        with self.accelerator.autocast():
            yield
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(True, recurse=False)

    def weights(self, policy: Policy) -> dict[str, Any]:
        if not self.sharded:
            return policy.model.state_dict()
        every, once = (dict(policy.model.named_parameters(remove_duplicate=again)) for again in (False, True))
        whole = get_model_state_dict(policy.model, options=WHOLE)  # tied weights are no longer one in it
        return {name: values for name, values in whole.items() if name in once or name not in every}

    def optimizer_state(self, policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return get_optimizer_state_dict(policy.model, optimizer, options=WHOLE) if self.sharded else optimizer.state_dict()

    def load_optimizer(self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self.sharded:
            set_optimizer_state_dict(policy.model, optimizer, state, options=StateDictOptions(full_state_dict=True))
        else:
            optimizer.load_state_dict(state)

    # ---- a step ------------------------------------------------------------------------------------------------------------
    def score(self, policy: Policy, batch: Batch, temperature: float, entropy_grad: bool = False, last: bool = True) -> Scored:
        scorer = self.scorers.get(id(policy))
        if scorer is None:  # adapters off: the same weights, which nothing of this pass trains
            return score_tokens(policy, batch, temperature, entropy_grad)
        if isinstance(scorer, DistributedDataParallel) and not (last and torch.is_grad_enabled()):
            with scorer.no_sync(), self.accelerator.autocast():
                return scorer(batch, temperature, entropy_grad)
        with self.accelerator.autocast():
            return scorer(batch, temperature, entropy_grad)

    def norms(self, gradients: list[Tensor]) -> Tensor:
        norms = [gradient.norm() for gradient in gradients]
        return torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms])

    # ---- what only all of them know ----------------------------------------------------------------------------------------
    def total(self, numbers: Tensor) -> Tensor:
        reduced = self.accelerator.reduce(numbers.to(self.accelerator.device), reduction="sum")
        assert isinstance(reduced, Tensor)
        return reduced.cpu()

    def most(self, number: int) -> int:
        return max(self.everyones([number]))

    def everyones(self, value: list[Any]) -> list[Any]:
        return gather_object(value)

    def agreed(self, value: Any) -> Any:
        return broadcast_object_list([value])[0]

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.accelerator.log(numbers, step=step)

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def form_group(self) -> None:
        """A process group also where there is one process."""
        if not dist.is_initialized():
            backend = "nccl" if self.accelerator.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore

    def close(self) -> None:
        """The wrappers go first: one that outlives its process group takes that along while it holds the interpreter's lock,
        for which the group's threads may be waiting."""
        self.scorers.clear()
        gc.collect()
        self.accelerator.end_training()
