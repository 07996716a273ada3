"""Digests: of a document, equal for equal ones whatever the order of their keys, and of a file."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.untrusted_files import refuse_pointer


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


def verify_sha256(
    path: str | Path,
    expected: str,
    *,
    found: str | None = None,
    expected_bytes: int | None = None,
    next_step: str = "take the original again",
) -> str:
    """The hash of the file, which must be the expected one. found: the hash, where it is known already.

    Raises:
        RobustzooError: there is no such file; or with both hashes, the size found (and expected, where known)
            and the next step.
    """
    path = Path(path)
    if not path.is_file():
        raise RobustzooError(f"{path} does not exist; {next_step}")
    if found is None:
        refuse_pointer(path)
        found = sha256_file(path)
    size = path.stat().st_size
    if found == expected.lower():
        return found
    known = f" ({expected_bytes} bytes)" if expected_bytes is not None else ""
    raise RobustzooError(
        f"{path} is not the published file and was not used.\n"
        f"  expected sha256 {expected}{known}\n"
        f"  found    sha256 {found} ({size} bytes)\n"
        f"Next: {next_step}"
    )
