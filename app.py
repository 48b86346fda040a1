"""Start the lessons: `python app.py`, then open the address that it prints."""

import argparse
import os
import signal
import sys
from typing import NoReturn

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported: no request leaves this machine
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class OneLine(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = OneLine(description="Every tensor of one real GRPO step, in the browser.")
    parser.add_argument("--model", metavar="PATH|ID", default="tiny", help="a folder, a hub id, or a kept step (built-in)")
    parser.add_argument("--batch", metavar="FILE", help="a batch to debug and to compare on, for everybody who opens it")
    parser.add_argument("--lang", default="en", help="language of the page where the link names none (default: en)")
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1: this machine only; 0.0.0.0: the whole network")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    asked = arguments(argv)
    from lessons import components, prose, shell, theme, view  # after the arguments: --help answers at once
    from lessons.debug import source

    if asked.lang not in prose.LANGUAGES:
        print(f"--lang: found {asked.lang!r}, allowed: {', '.join(prose.LANGUAGES)}", file=sys.stderr)
        return 2
    try:
        view.start(asked.model)
        if asked.batch:
            source.preload(asked.batch)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    shell.build(asked.lang).launch(
        server_name=asked.host, server_port=asked.port, share=False, ssr_mode=False, run_history=False, footer_links=[],
        theme=theme.LessonTheme(), css=components.css(), head=components.head(), pwa=False, enable_monitoring=False,
        max_file_size=source.MAX_FILE_BYTES, allowed_paths=[str(components.plotly_js().parent)], mcp_server=False,
    )  # fmt: skip
    return 0


def terminated(*_: object) -> NoReturn:
    """What runs have kept on disk is deleted, as at Ctrl-C."""
    if runs := sys.modules.get("lessons.train.runs"):
        runs.runs.clear_disk()
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main())
