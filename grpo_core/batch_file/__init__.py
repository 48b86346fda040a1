"""The batch file: one GRPO batch on disk, as JSON or safetensors, with the names of `batch.Batch`.

`fields` says what there is, `cells` reads one field, `rows` fits ragged rows together, `document` makes a checked `Batch`,
`files` reads and writes.
"""

from .files import load_batch, remarks, save_batch

__all__ = ["load_batch", "remarks", "save_batch"]
