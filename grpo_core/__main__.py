"""Command line. Exit status 0: done · 2: what was asked for cannot be done, said in one line."""

import argparse
import sys
from typing import NoReturn

from transformers.utils import logging

from .commands import COMMANDS


class OneLine(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    top = OneLine(prog="python -m grpo_core", description="One real GRPO step, and every trainer's number on one batch.")
    commands = top.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    arguments = top.parse_args(argv)
    logging.disable_progress_bar()  # of weights that are read and written; a run has one of its own
    try:
        return arguments.run(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
