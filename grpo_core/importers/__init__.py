"""Other tools' dumps as batches: `open_any(path)` recognises a file by what is in it, never by its name.

`source` reads a file within bounds, `formats` is the table, a file per format maps its names onto the batch file's, `text`
tokenises and re-scores where a dump holds no ids, `lacking` says what a batch cannot be asked.
"""

from .formats import FORMATS, Format
from .lacking import lacking
from .opening import Recognised, open_any

__all__ = ["FORMATS", "Format", "Recognised", "lacking", "open_any"]
