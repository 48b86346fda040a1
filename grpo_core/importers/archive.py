"""A `.pt` file: torch's weights-only loader, behind a look at the archive. Nothing in it is executed or written to disk.

The loader builds tensors and plain values only. What it does not bound is checked before and after: a compressed entry (torch
writes none) could unfold to anything, and so could a tensor whose rows all lie on one stored number.
"""

import re
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch_file.fields import BadField
from ..batch_file.reading import opened, reason

MAX_BYTES = 2**30
MAX_PICKLE_BYTES = 2**25  # of names, numbers and lists; tensors lie beside it
MAX_DIRECTORY_BYTES = 2**24  # the archive's list of entries: a hundred bytes each
ALLOWED = "what torch.save writes of dicts, lists, numbers, texts and tensors"


def read_archive(path: Path) -> Any:
    """What `torch.save` wrote. Raises BadField where it is anything but tensors and plain values."""
    _refuse_bombs(path)
    try:
        with warnings.catch_warnings(), opened(path) as file:  # by its content: torch goes by the end of a name
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the loader's own list is open-ended: a stranger's bytes decide what goes wrong
        raise BadField("content", f"an archive that is refused ({_why(error)})", ALLOWED) from error
    _refuse_odd_tensors(content)
    return content


def _why(error: Exception) -> str:
    """The loader's sentence that matters, without its advice to switch the safety off."""
    text = reason(error)
    wanted = re.search(r"GLOBAL ([\w.]+)", text)
    if wanted:
        return f"it asks for {wanted[1][:80]}, which might run"
    return text.rpartition("WeightsUnpickler error: ")[2].split(" Please")[0][:160]


def _refuse_bombs(path: Path) -> None:
    with opened(path) as file:
        size = file.seek(0, 2)
        if size > MAX_BYTES:
            raise BadField("content", f"an archive of {size} bytes", f"at most {MAX_BYTES}")
        file.seek(max(0, size - 2**16 - 22))
        if _directory_bytes(file.read()) > MAX_DIRECTORY_BYTES:
            raise BadField("content", "an archive with a list of entries that long", f"at most {MAX_DIRECTORY_BYTES} bytes")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, RuntimeError) as error:
        raise BadField("content", f"no whole archive ({reason(error)[:100]})", ALLOWED) from error
    packed = next((e for e in entries if e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size), None)
    if packed is not None:
        raise BadField("content", f"a compressed entry of {packed.file_size} bytes", f"{ALLOWED}: stored, not compressed")
    for entry in entries:
        if entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE_BYTES:
            raise BadField("content", f"{entry.file_size} bytes beside the tensors", f"at most {MAX_PICKLE_BYTES}")
    if sum(entry.file_size for entry in entries) > size:
        raise BadField("content", "entries that overlap", ALLOWED)


def _directory_bytes(tail: bytes) -> int:
    """The size of the archive's list of entries, as its last record says; of several records the largest."""
    sizes = [0]
    for mark, offset, form in ((b"PK\x05\x06", 12, "<I"), (b"PK\x06\x06", 40, "<Q")):
        place = tail.find(mark)
        while place >= 0:
            value = tail[place + offset : place + offset + struct.calcsize(form)]
            if len(value) == struct.calcsize(form) and value != b"\xff" * 4:
                sizes.append(struct.unpack(form, value)[0])
            place = tail.find(mark, place + 1)
    return max(sizes)


def _refuse_odd_tensors(content: Any) -> None:
    """Plain tensors whose numbers are all there. A list that contains itself ends as well: each is looked at once."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        if isinstance(value, (dict, list, tuple, set)):
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, Tensor):
            plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
            if not plain or value.untyped_storage().nbytes() < value.numel() * value.element_size():
                raise BadField("content", f"a tensor of shape {list(value.shape)} that is not stored in full", ALLOWED)
