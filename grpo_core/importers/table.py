"""A parquet file as rows, within bounds: a few compressed bytes may stand for gigabytes."""

from pathlib import Path
from typing import Any

from ..batch_file.fields import BadField
from ..batch_file.reading import opened, reason

MAX_BYTES = 2**28
MAX_ROWS = 2**18
MAX_COLUMNS = 256
MAX_UNFOLDED = 2**28  # bytes in memory
MAX_CELLS = 2**24  # values, each of which is an object then
ROWS_AT_ONCE = 64


def read_table(path: Path) -> list[dict[str, Any]]:
    """Raises BadField, also where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BadField("content", "a parquet file, which needs pyarrow (pip install pyarrow)", "JSON otherwise") from error
    with opened(path) as file:
        size = file.seek(0, 2)
    if size > MAX_BYTES:
        raise BadField("content", f"a parquet file of {size} bytes", f"at most {MAX_BYTES}")
    try:
        with pq.ParquetFile(path, thrift_string_size_limit=2**24, thrift_container_size_limit=2**16) as table:
            _refuse_bombs(table.metadata)
            return _rows(table)
    except BadField:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise BadField("content", f"no parquet file ({reason(error)[:160]})", "a whole parquet file") from error


def _refuse_bombs(metadata: Any) -> None:
    """By what the file says of itself."""
    told = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    for what, count, most in (
        ("rows", metadata.num_rows, MAX_ROWS),
        ("columns", metadata.num_columns, MAX_COLUMNS),
        ("bytes when unpacked", told, MAX_UNFOLDED),
    ):
        if not 0 <= count <= most:
            raise BadField("content", f"a parquet file of {count} {what}", f"at most {most}")


def _rows(table: Any) -> list[dict[str, Any]]:
    """By what comes out: a few rows at a time, so that it stops where it gets too much."""
    names = [field.name for field in table.schema_arrow if not field.name.startswith("__") and _is_plain(field.type)]
    rows: list[dict[str, Any]] = []
    bytes_left, cells_left = MAX_UNFOLDED, MAX_CELLS
    for part in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=names, use_threads=False):
        columns = [_decoded(column) for column in part.columns]
        bytes_left -= sum(column.nbytes for column in columns)
        cells_left -= sum(map(_cells, columns))
        if bytes_left < 0 or cells_left < 0 or len(rows) + len(part) > MAX_ROWS:
            raise BadField("content", "a parquet file that unpacks to more than it says", f"at most {MAX_UNFOLDED} bytes")
        values = [column.to_pylist() for column in columns]
        rows.extend(dict(zip(part.schema.names, row, strict=True)) for row in zip(*values, strict=True))
    if not rows:
        raise BadField("content", "a parquet file without rows of texts and numbers", "at least one")
    return rows


def _is_plain(kind: Any, outermost: bool = True) -> bool:
    """Numbers, texts, and lists and structs of them. Of the others some stand for more than they take."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return outermost and pa.types.is_string(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain(kind.value_type, False)
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type, False) for field in kind)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in plain) or outermost and pa.types.is_null(kind)


def _decoded(column: Any) -> Any:
    """A dictionary's texts in full: it is their size that counts."""
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _cells(column: Any) -> int:
    """Values in it, those of lists and structs one by one."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        return len(column) + sum(_cells(column.field(index)) for index in range(column.type.num_fields))
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    return len(column) + (_cells(column.flatten()) if is_list else 0)
