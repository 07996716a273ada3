"""Digests: of a document, equal for equal ones whatever the order of their keys, and of a file."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any


def json_digest(document: Any) -> str:
    """sha256 (hex) of the document as JSON with sorted keys and no spaces. Raises ValueError for NaN."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file as 64 lower-case hex digits, read in blocks."""
    digest = sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
