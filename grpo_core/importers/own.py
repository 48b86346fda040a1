"""Our own batch file, under whatever name."""

from ..batch_file.document import ONLY_IN
from .source import Source

NAMES = frozenset(name for names in ONLY_IN.values() for name in names)


def holds(source: Source) -> bool:
    document = source.document if source.kind in ("json", "safetensors") and isinstance(source.document, dict) else {}
    return bool(NAMES & (document.keys() | source.tensors.keys()))
