"""vLLM as the sampler: a server in processes of its own, asked over its HTTP interface (`vllm_server`).

Ids go in and come out through `/v1/completions`, one request a prompt. New weights go in through vLLM's development
interface (`VLLM_SERVER_DEV_MODE=1`): they are written to a folder that both sides see, then `/pause`, `/collective_rpc` with
`reload_weights`, `/reset_prefix_cache`, `/update_weight_version`, `/resume`. `/weight_info` says which weights the server
holds, so that one that was restarted gets them again. The same on a CPU and on GPUs, with any parallelism of the server.

Log-probs: vLLM's `processed_logprobs` are those that the token was drawn from, temperature, top-k and top-p included; its
default, `raw_logprobs`, leaves the temperature out. Over the full vocabulary at the sampling temperature they are therefore
processed ones without top-k and top-p, and nothing else is taken. They are the server's own, in its precision: that they
differ from the trainer's is what `sampler_gap` in the metrics shows, and what `correction` is for.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoint import WRITE_ERRORS
from ..config import Recipe
from ..engine import Engine
from ..policy import Policy
from .merged import save_weights
from .sampler import OtherEngine, seed_of
from .vllm_server import START, VllmServer

REQUESTS = 64  # at a time; the server has its own queue
MODES = ("processed_logprobs",)
FREE_MODES = ("raw_logprobs", *MODES)  # the same at temperature 1


class Vllm(OtherEngine):
    """A server that follows the policy: before a step is sampled it has the weights of that step."""

    def __init__(self, config: Any, engine: Engine):
        super().__init__(config, engine)
        self.server = VllmServer(config.vllm_url, config.vllm_timeout)
        self.folder = Path(config.vllm_weights or Path(config.out) / "vllm").expanduser().resolve()
        self.run, self.model, self.device = self._by_the_first(lambda: (uuid.uuid4().hex[:8], *self._check()))

    def _by_the_first(self, act: Callable[[], Any]) -> Any:
        """What `act` gives on the first process, for all of them; where it fails there, all of them raise ValueError."""
        answer, failure = None, ""
        if self.engine.process == 0:
            try:
                answer = act()
            except ValueError as error:
                failure = str(error)
            except (KeyError, IndexError, TypeError) as error:
                failure = f"vllm_url: {self.server.url} answers in another way than vLLM 0.32 ({type(error).__name__}: {error})"
            except WRITE_ERRORS as error:
                failure = f"vllm_weights: the weights could not be written to {self.folder} ({str(error)[:200]})"
        answer, failure = self.engine.agreed((answer, failure))
        if failure:
            raise ValueError(failure)
        return answer

    def _check(self) -> tuple[str, str]:
        """The name of the server's model, and its kind of device. Raises ValueError where it cannot be used for this run."""
        config, server = self.config, self.server
        served = server.get("v1/models")["data"][0]
        if served["max_model_len"] <= config.max_completion_length:
            raise ValueError(
                f"max_completion_length: found {config.max_completion_length}, allowed: below the {served['max_model_len']} "
                f"tokens that the server at {server.url} reads (--max-model-len)"
            )
        settings = server.get("server_info?config_format=json")["vllm_config"]
        mode, allowed = settings["model_config"]["logprobs_mode"], FREE_MODES if config.temperature == 1 else MODES
        if mode not in allowed:
            raise ValueError(
                f"vllm_url: found a server with --logprobs-mode {mode}, allowed at temperature {config.temperature:g}: "
                f"{' or '.join(allowed)}; start it with {START}"
            )
        return served["id"], settings["device_config"]["device"]

    def prove(self, policy: Policy, version: int) -> None:
        """All that the server holds becomes 0 first: a part that the new weights do not reach shows in the log-probs. Its
        processors keep a packed copy of the output head, which vLLM 0.32 does not renew where it is the embeddings'."""
        if self.device == "cpu" and policy.model.config.get_text_config().tie_word_embeddings:
            raise ValueError(
                f"sampler: found 'vllm' on a CPU with {policy.name!r}, whose output head is its embeddings: vLLM 0.32 keeps "
                "the old head there; allowed: a server on a GPU, or a model with tie_word_embeddings false"
            )
        self._by_the_first(lambda: self.server.post("weight_checker", {"action": "reset"}))
        super().prove(policy, version)

    # ---- weights -----------------------------------------------------------------------------------------------------------
    @contextmanager
    def following(self, policy: Policy, version: int) -> Iterator[None]:
        """The first process hands the weights over, where the server has others; all wait. None of them needs all weights."""
        name = f"{self.run}-{version}"
        if self._by_the_first(self._held) != name:
            weights = self.engine.weights(policy)
            self._by_the_first(lambda: self._hand_over(policy, weights, version, name))
        yield
        if (held := self._by_the_first(self._held)) != name:
            raise ValueError(
                f"vllm_url: the server at {self.server.url} had the weights {held!r} when the rows were sampled, allowed: "
                f"{name!r}; does another run use it too, or was it restarted?"
            )

    def _held(self) -> str:
        return self.server.get("weight_info")["weight_version"]

    def _hand_over(self, policy: Policy, weights: dict[str, Any], version: int, name: str) -> None:
        server, folder = self.server, save_weights(policy, weights, self.folder, version)
        server.post("pause?mode=wait")
        try:
            try:
                server.post("collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            except ValueError as error:
                raise ValueError(f"{error}; does it see {folder} (vllm_weights), and is it of {policy.name!r}?") from error
            if not server.post("reset_prefix_cache")["success"]:
                raise ValueError(f"vllm_url: the server at {server.url} keeps what it has read with the weights of before")
            server.post("update_weight_version", {"new_version": name})
        finally:
            server.post("resume")

    # ---- rows --------------------------------------------------------------------------------------------------------------
    def rows(
        self, policy: Policy, prompts: list[list[int]], recipe: Recipe, draws: Tensor
    ) -> list[tuple[list[int], list[float]]]:
        """Every setting that the model's own generation config could bring in is said, and our EOS alone ends a row."""
        size = len(draws) // len(prompts)
        same = {
            "model": self.model, "n": size, "max_tokens": recipe.max_completion_length, "temperature": recipe.temperature,
            "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "logprobs": 0, "return_token_ids": True, "ignore_eos": True,
            "stop_token_ids": sorted(policy.eos_ids),
        }  # fmt: skip
        parts = draws.split(size)
        asked = [same | {"prompt": ids, "seed": seed_of(part)} for ids, part in zip(prompts, parts, strict=True)]
        with ThreadPoolExecutor(min(REQUESTS, len(asked))) as threads:
            answers = list(threads.map(lambda body: self.server.post("v1/completions", body), asked))
        return [row for answer in answers for row in rows_of_answer(answer)]


def rows_of_answer(answer: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    """Ids and log-probs of each choice of a `/v1/completions` answer, in the order of their index."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [(choice["token_ids"], choice["logprobs"]["token_logprobs"]) for choice in choices]
