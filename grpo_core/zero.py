"""DeepSpeed's ZeRO (0.19) as the engine of a run: the only file that knows of deepspeed. Process groups, sums, mixed precision
and trackers are those of `distributed`, which knows of the rest.

`zero1` shares the optimizer's states out over the processes, `zero2` the gradients too, `zero3` the weights and the reference
too. Batches and their denominators are the step's own. So are checkpoints: whole weights, and the optimizer's whole states as
torch has them.
"""
# ruff: noqa: E402

import gc
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")  # it looks once, when it is imported
import deepspeed
from deepspeed import ops, utils

from .distributed import Processes
from .logprobs import score_tokens
from .policy import AdaptersOff, Policy
from .scale.memory import BUCKET
from .train_config import TrainConfig
from .types import Batch, Scored

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
PLACE = "LOCAL_RANK"  # the environment's name for a process on its machine

utils.logger.setLevel(logging.ERROR)
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # it calls torch 2.13 by old names
if os.environ["DS_ACCELERATOR"] == "cpu":  # gloo sums; without this a kernel of its own is compiled first, where a compiler is
    ops.__dict__.setdefault("__compatible_ops__", {})  # pyright: ignore


class Output(nn.Module):
    """`score_tokens` as DeepSpeed can wrap it: it finds tensors in a tuple, and autocast begins inside."""

    def __init__(self, policy: Policy, precision: Callable[..., AbstractContextManager]):
        super().__init__()
        self.model, self.policy, self.precision = policy.model, policy, precision

    def forward(self, batch: Batch, temperature: float, entropy_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
        with self.precision():
            scored = score_tokens(self.policy, batch, temperature, entropy_grad)
        return scored.logprobs, scored.entropy, scored.hidden


class Times(torch.autograd.Function):
    """The values as they are; their gradient so many times."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def refuse(config: TrainConfig) -> None:
    """Raises ValueError for settings that do not go with this."""
    found, adapters = f"sharding: found {config.sharding!r} with", config.lora_rank > 0
    if config.dtype == "float64" or (config.dtype == "bfloat16" and not adapters):  # it steps in fp32, beside the weights
        raise ValueError(f"{found} dtype {config.dtype}, allowed: float32, also with autocast, or bfloat16 below adapters")
    if adapters and config.sharding == "zero3":
        raise ValueError(f"{found} lora_rank, allowed with adapters: replicate, zero1, zero2")


class Zero(Processes):
    """The processes that `torchrun` started, or a single one."""

    def __init__(self, config: TrainConfig):
        refuse(config)
        super().__init__(config)
        self.stage = STAGES[config.sharding]
        self.engines: dict[int, Any] = {}
        self.form_group()
        self.unplaced = PLACE not in os.environ
        os.environ.setdefault(PLACE, "0")  # it reads that all through a run; only torchrun sets it

    # ---- weights -----------------------------------------------------------------------------------------------------------
    def prepare(self, policy: Policy, config: TrainConfig) -> Policy:
        policy.model.to(self.accelerator.device)
        return policy

    def prepare_optimizer(self, policy: Policy, optimizer: torch.optim.Optimizer, config: TrainConfig) -> torch.optim.Optimizer:
        self._wrap(policy, config, optimizer)
        return optimizer  # over this process's share now

    def prepare_reference(self, reference: Policy | None, policy: Policy, config: TrainConfig) -> Policy | None:
        prepared = super().prepare_reference(reference, policy, config)
        if self.stage == 3 and prepared is not None and not isinstance(prepared, AdaptersOff):
            self._wrap(prepared, config)
        return prepared

    def _wrap(self, policy: Policy, config: TrainConfig, optimizer: torch.optim.Optimizer | None = None) -> None:
        """With ZeRO's third stage all of a micro-batch is one pack: a process that made more passes than another would wait
        for it for ever."""
        policy.one_pack = self.stage == 3
        settings = {
            "train_micro_batch_size_per_gpu": 1,  # has to be there; the batches are ours
            "zero_allow_untested_optimizer": True,  # torch's SGD
            "gradient_clipping": config.max_grad_norm,
            "zero_optimization": {
                "stage": self.stage, "overlap_comm": False, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET,
                "stage3_prefetch_bucket_size": BUCKET, "stage3_max_reuse_distance": 0,  # a layer's weights go behind its pass
                "stage3_param_persistence_threshold": 10 * policy.model.config.get_text_config().hidden_size,  # norms stay
            },
        }  # fmt: skip
        model = Output(policy, self.accelerator.autocast)
        self.engines[id(policy)] = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]

    @contextmanager
    def whole_weights(self, policy: Policy) -> Iterator[None]:
        """The hooks that fetch and drop a layer's weights are gone meanwhile, as in TRL 1.16, `unwrap_model_for_generation`."""
        with self._whole(policy), self.accelerator.autocast():
            if self.stage < 3:
                yield
                return
            offload = self.engines[id(policy)].optimizer.parameter_offload
            for parameter in policy.model.parameters():
                parameter.ds_active_sub_modules.clear()
            for hook in (*offload.forward_hooks, *offload.backward_hooks):
                hook.remove()
            offload.forward_hooks, offload.backward_hooks = [], []
            yield
            coordinator = offload.get_param_coordinator()
            if not coordinator.is_invalid_trace():
                coordinator._invalidate_trace()
            offload._register_deepspeed_module(offload.module)

    def _whole(self, policy: Policy) -> AbstractContextManager:
        return deepspeed.zero.GatheredParameters(list(policy.model.parameters()), enabled=self.stage == 3)

    def weights(self, policy: Policy) -> dict[str, Any]:
        with self._whole(policy):
            if self.process:
                return {}
            named = policy.model.state_dict(keep_vars=True)  # tied weights are one tensor, and stay one
            copies = {id(values): values.detach().to("cpu", copy=True) for values in named.values()}
            return {name: copies[id(values)] for name, values in named.items()}

    def _shares(self, policy: Policy, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """What the optimizer steps in: flat tensors that hold this process's part of each parameter."""
        if self.stage == 3:
            return self.engines[id(policy)].optimizer.fp32_partitioned_groups_flat
        return [share for group in optimizer.param_groups for share in group["params"]]

    def optimizer_state(self, policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        parameters, share = trained(policy), self._shares(policy, optimizer)[0]
        known, state = optimizer.state.get(share, {}), {}
        for number, parameter in enumerate(parameters if known else []):
            state[number] = {name: whole_state(parameter, name, value) for name, value in known.items()}
        groups = [{**group, "params": list(range(len(parameters)))} for group in optimizer.param_groups]
        return {"state": state, "param_groups": groups} if self.process == 0 else {}

    def load_optimizer(self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        saved = state["state"]
        if not saved:
            return
        for share in self._shares(policy, optimizer):
            optimizer.state[share] = {
                name: torch.zeros_like(share) if value.dim() else value.to(share.device, copy=True)
                for name, value in saved[0].items()
            }
        if self.stage < 3:  # else each parameter finds its part at the first step only
            self.engines[id(policy)].optimizer._lazy_init_hp_params_optimizer_state()
        for number, parameter in enumerate(trained(policy)):
            for name, value in saved[number].items():
                if value.dim():
                    self._set(parameter, name, value.to(self.accelerator.device).flatten())

    def _set(self, parameter: nn.Parameter, name: str, whole: Tensor) -> None:
        if self.stage < 3:
            utils.safe_set_full_optimizer_state(parameter, whole, name)
        else:  # equal shares; the last ones are padded
            size = parameter.ds_tensor.numel()  # pyright: ignore
            padded = nn.functional.pad(whole, (0, size * self.processes - len(whole)))
            utils.safe_set_local_optimizer_state(parameter, padded.narrow(0, size * self.process, size), name)

    # ---- a step ------------------------------------------------------------------------------------------------------------
    def score(self, policy: Policy, batch: Batch, temperature: float, entropy_grad: bool = False, last: bool = True) -> Scored:
        """DeepSpeed divides the sum of the gradients by the number of processes. The loss already has the denominators of all
        of them, so each gradient is that many times as large on its way into the model: exact where the number is a power of
        two, else within the rounding of one product."""
        engine = self.engines.get(id(policy))
        if engine is None:
            return super().score(policy, batch, temperature, entropy_grad, last)
        engine.set_gradient_accumulation_boundary(last)
        logprobs, entropy, hidden = engine(batch, temperature, entropy_grad)
        logprobs, entropy = (Times.apply(values, self.processes) for values in (logprobs, entropy))
        return Scored(logprobs=logprobs, entropy=entropy, hidden=hidden)

    def backward(self, policy: Policy, loss: Tensor) -> None:
        self.engines[id(policy)].backward(loss, scale_wrt_gas=False)

    def gradients(self, policy: Policy) -> dict[str, Tensor]:
        return {name: self._gradient(p) for name, p in policy.model.named_parameters() if p.requires_grad}

    def _gradient(self, parameter: Any) -> Tensor:
        """This process's part."""
        if self.stage < 3:
            place = parameter._hp_mapping
            return parameter.new_zeros(0) if place is None else place.get_lp_grad_fragment(parameter._index_in_param_group)
        share = utils.safe_get_local_grad(parameter)
        assert share is not None
        return share[: max(0, parameter.ds_numel - len(share) * self.process)]  # behind it there is padding

    def norms(self, gradients: list[Tensor]) -> Tensor:
        return self.total(torch.stack([gradient.double().square().sum() for gradient in gradients])).sqrt().float()

    def update(self, policy: Policy, optimizer: torch.optim.Optimizer, max_norm: float, norm: Tensor) -> bool:
        """It clips by itself, at the setting it was given, and lets gradients go that are not finite."""
        engine = self.engines[id(policy)]
        assert engine.gradient_clipping() == max_norm
        engine.step()
        return engine.was_step_applied()

    def close(self) -> None:
        for engine in self.engines.values():
            engine.destroy()
        self.engines.clear()
        gc.collect()  # before the group, as in `Processes.close`
        if deepspeed.comm.is_initialized():
            deepspeed.comm.destroy_process_group()  # it keeps groups of its own, and would hand them to the next run
        super().close()
        if self.unplaced:
            os.environ.pop(PLACE, None)  # accelerate would take it for torchrun's


def trained(policy: Policy) -> list[nn.Parameter]:
    return [parameter for parameter in policy.model.parameters() if parameter.requires_grad]


def whole_state(parameter: nn.Parameter, name: str, share: Tensor) -> Tensor:
    """One of the optimizer's states of a parameter, on the CPU. `step` is a number, the same for all."""
    whole = utils.safe_get_full_optimizer_state(parameter, name) if share.dim() else share.clone()
    assert whole is not None
    return whole.cpu()
