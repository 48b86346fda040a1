"""What a step asks of the machinery around it. `Engine` is one process without any; `distributed.Processes` is many.

A step never knows how many processes share it: it hands in its own rows, and asks for what only all of them know.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .logprobs import score_tokens
from .policy import Policy
from .types import Batch, Scored


class Engine:
    """One process: every question about the others answers itself."""

    processes = 1
    process = 0

    def prepare(self, policy: Policy, config: Any) -> Policy:
        """The policy as it is trained here: on its device, shared with the other processes."""
        return policy

    def prepare_reference(self, reference: Policy | None, policy: Policy, config: Any) -> Policy | None:
        """The frozen reference, likewise; `policy` is the prepared one."""
        return reference

    def prepare_optimizer(self, policy: Policy, optimizer: torch.optim.Optimizer, config: Any) -> torch.optim.Optimizer:
        """The optimizer over the prepared policy, as `update` steps it."""
        return optimizer

    def score(self, policy: Policy, batch: Batch, temperature: float, entropy_grad: bool = False, last: bool = True) -> Scored:
        """`logprobs.score_tokens`, through whatever the weights are wrapped in. Gradients add up over the micro-batches of
        an optimizer step; behind the backward pass of the `last` one they are the sum over all processes."""
        return score_tokens(policy, batch, temperature, entropy_grad)

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over the processes."""
        return numbers

    def most(self, number: int) -> int:
        """The largest over the processes."""
        return number

    def everyones(self, value: list[Any]) -> list[Any]:
        """The list of every process, end to end, in their order."""
        return value

    def backward(self, policy: Policy, loss: Tensor) -> None:
        """Adds the loss's gradient to the policy's."""
        loss.backward()

    def gradients(self, policy: Policy) -> dict[str, Tensor]:
        """The gradient of each parameter that has one, or the part that this process holds."""
        return {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}

    def norms(self, gradients: list[Tensor]) -> Tensor:
        """L2 norm of each whole gradient, of which this process may hold a part."""
        return torch.stack([gradient.norm() for gradient in gradients])

    def update(self, policy: Policy, optimizer: torch.optim.Optimizer, max_norm: float, norm: Tensor) -> bool:
        """Steps where the gradients' norm over all of them is finite, clipped at `max_norm` (0 = never). Says whether."""
        if not norm.isfinite():
            return False
        if max_norm and norm + 1e-6 > max_norm:  # else torch would multiply each of them by 1
            torch.nn.utils.clip_grads_with_norm_(policy.model.parameters(), max_norm, norm)
        optimizer.step()
        return True

    def agreed(self, value: Any) -> Any:
        """What the first process found, for all of them."""
        return value

    def weights(self, policy: Policy) -> dict[str, Any]:
        """All weights as they are saved; empty on a process that does not save."""
        return policy.model.state_dict()

    def optimizer_state(self, policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's whole state, likewise."""
        return optimizer.state_dict()

    def load_optimizer(self, policy: Policy, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Puts back what `optimizer_state` gave."""
        optimizer.load_state_dict(state)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Hands the numbers to the run's trackers."""

    def wait(self) -> None:
        """Until every process is here."""

    def close(self) -> None:
        """Ends trackers and process groups."""

    def whole_weights(self, policy: Policy) -> AbstractContextManager:
        """Inside, every process holds all weights: to sample from, or to save."""
        return nullcontext()


LOCAL = Engine()
