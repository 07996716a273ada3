"""Tables and figures of results, written whole or not at all: the same numbers give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo.atomic_files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    write_bytes(path, stream.getvalue().encode())
    return path


def write_figure(path: str | Path, figure: Figure) -> Path:
    """Write a figure as PNG and return the path. Figures are made without pyplot: no display, no state."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    path = Path(path)
    write_bytes(path, stream.getvalue())
    return path
