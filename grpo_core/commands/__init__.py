"""The command line, one file per command: `add` declares its arguments, `run` does it and returns the exit status."""

from . import compare, convert, doctor, step, train

COMMANDS = (step, train, compare, doctor, convert)
