"""CSV tables of results, written whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustzoo.cards.files import write_atomic


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as CSV, floats with 9 significant digits, and return the path.

    Raises:
        ValueError: a row has a column that is not in `columns`.
    """
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{v:.9g}" if isinstance(v, float) else v for key, v in row.items()})
    path = Path(path)
    write_atomic(path, stream.getvalue().encode())
    return path
