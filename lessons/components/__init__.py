"""The components. Each folder: the value's constructor (component.py), its drawing (script.js), its look (style.css).

Python sends values, the browser draws them; hover costs no round trip. `head()` and `css()` gather the files once.
"""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .bridge.component import bridge_bars
from .chart.component import chart
from .compare.component import Compare, batch_source, preset_pair, printed_loss
from .debug.component import (
    Debug,
    batch_about,
    batch_chooser,
    batch_grid,
    finding_list,
    report_saver,
    token_card,
    trainer_prints,
)
from .exhibit.component import exhibit
from .journey.component import Journey
from .matrix.component import matrix
from .museum.component import Museum
from .nav.component import Nav
from .picture.component import Picture
from .preset.component import PresetNote
from .preset_table.component import preset_table
from .shared.component import number
from .shift.component import shift
from .side.component import Side
from .table.component import table
from .tensor_grid.component import tensor_grid
from .text.component import text
from .token_map.component import token_map
from .token_strip.component import token_strip
from .token_table.component import token_table
from .train.component import Train
from .vocab_bars.component import vocab_bars

HERE = Path(__file__).parent
FIRST = "shared"  # defines the namespace that the other scripts register in

__all__ = [
    "Compare", "Debug", "Journey", "Museum", "Nav", "Picture", "PresetNote", "Side", "Train", "batch_about", "batch_chooser",
    "batch_grid", "batch_source", "bridge_bars", "chart", "css", "exhibit", "finding_list", "head", "matrix", "number",
    "plotly_js", "preset_pair", "preset_table", "printed_loss", "report_saver", "shift", "table", "tensor_grid", "text",
    "token_card", "token_map", "token_strip", "token_table", "trainer_prints", "vocab_bars",
]  # fmt: skip


def _files(pattern: str) -> list[Path]:
    return sorted(HERE.glob(f"*/{pattern}"), key=lambda path: (path.parent.name != FIRST, str(path)))


@cache
def head() -> str:
    """Every script as one inline element: nothing is requested from anywhere."""
    scripts = ["window.Lessons = {};"] + [path.read_text("utf-8") for path in _files("*.js")]
    scripts.append(f"Lessons.plotlyAddress = {json.dumps(f'gradio_api/file={plotly_js()}')};")
    assert not any("</script" in script for script in scripts)
    return "<script>\n" + "\n".join(scripts) + "\n</script>"


@cache
def plotly_js() -> Path:
    """plotly.js as the plotly package brings it; our own server sends it, so the app may be offline."""
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


@cache
def css() -> str:
    """Every style sheet, the shared one first."""
    return "\n".join(path.read_text("utf-8") for path in _files("*.css"))
