"""The digest of a document: equal documents have equal digests, whatever the order of their keys."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any


def json_digest(document: Any) -> str:
    """sha256 (hex) of the document as JSON with sorted keys and no spaces. Raises ValueError for NaN."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()
