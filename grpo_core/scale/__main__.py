"""The estimate as a table. Exit status 0, or 2 with one line about what is wrong."""

import argparse
import sys
from dataclasses import fields

from transformers import AutoConfig

from ..loading import BUILT_IN
from ..policy import first_line
from ..train_config import from_toml
from . import Estimate, estimate


def lines(found: Estimate, tflops: float, gbs: float) -> list[str]:
    """GB and TFLOP of one process, and seconds at these rates: of products, and of memory while decoding."""
    parts = (("held", found.held), ("sampling", found.sampling), ("scoring", found.scoring))
    memory = {f"{name}: {f.name}": getattr(part, f.name) for name, part in parts for f in fields(part)}
    memory |= {"first step: proof": found.proof, "PEAK": found.peak}
    memory["free RAM to load"] = found.host
    rows = [f"{name:24}{value / 1e9:10.3f} GB" for name, value in memory.items() if value]
    whole = 0.0
    for name, flop in vars(found.flop).items():
        seconds = flop / tflops / 1e12
        if name == "decode" and gbs:
            seconds = max(seconds, found.moved / gbs / 1e9)
        whole += seconds
        rows += [f"{name:24}{flop / 1e12:10.3f} TFLOP{seconds:10.2f} s"] * (flop > 0)
    return [*rows, f"{'a step':24}{found.flop.total / 1e12:10.3f} TFLOP{whole:10.2f} s at the rates given"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grpo_core.scale", description="Memory and FLOP of a step, from formulas.")
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--completion", type=int, default=0, help="tokens; 0 = the config's max_completion_length")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tflops", type=float, default=0.1, help="that its products reach: your assumption")
    parser.add_argument("--gbs", type=float, default=0.0, help="that its memory reaches, GB/s: likewise; 0 = no limit")
    asked = parser.parse_args(argv)
    try:
        config = from_toml(asked.config)
        model_config = AutoConfig.from_pretrained(BUILT_IN.get(config.model, config.model), trust_remote_code=False)
        completion = asked.completion or config.max_completion_length
        found = estimate(config, model_config, asked.prompt, completion, asked.processes, asked.device)
    except (ValueError, OSError) as error:
        print(first_line(error), file=sys.stderr)
        return 2
    print("\n".join(lines(found, asked.tflops, asked.gbs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
