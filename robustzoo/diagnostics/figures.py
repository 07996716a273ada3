"""What all figures share: written whole or not at all, the same bytes for the same numbers."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from robustzoo.cards.files import write_atomic


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG and return the path. Figures are made without pyplot: no display, no state."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    path = Path(path)
    write_atomic(path, stream.getvalue())
    return path
