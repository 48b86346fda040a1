"""A vLLM server over HTTP: its answers, or one line that says what is wrong. Read and run with vLLM 0.32.0."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from ..policy import first_line

START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


class VllmServer:
    """One server. Every method raises ValueError with the address and what it said."""

    def __init__(self, url: str, timeout: float):
        """`timeout` in seconds, for one answer."""
        self.url, self.timeout = url.rstrip("/"), timeout
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # it is asked directly

    def get(self, path: str) -> Any:
        return self._answer(urllib.request.Request(f"{self.url}/{path}"), path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """`body` as JSON."""
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body or {}).encode()
        return self._answer(urllib.request.Request(f"{self.url}/{path}", data, headers, method="POST"), path)

    def _answer(self, request: urllib.request.Request, path: str) -> Any:
        place = path.partition("?")[0]
        try:
            with self._open(request, timeout=self.timeout) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code == 404 and not place.startswith("v1/"):
                raise ValueError(f"vllm_url: the server at {self.url} has no /{place}; start it with {START}") from error
            raise ValueError(f"vllm_url: the server at {self.url} refuses /{place} ({_said(error)})") from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise ValueError(
                f"vllm_url: no answer from {self.url} to /{place} ({reason[:200]}); is the server running?"
            ) from error
        except ValueError as error:
            raise ValueError(f"vllm_url: {self.url} answers /{place} with something else than JSON; is it vLLM?") from error


def _said(error: urllib.error.HTTPError) -> str:
    """vLLM's own message, where it gave one."""
    try:
        said = json.loads(error.read())["error"]
        return first_line(ValueError(said["message"] if isinstance(said, dict) else said))
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return f"{error.code} {error.reason}"
