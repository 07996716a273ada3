"""Verify a model by name: resolve it to its pinned folder and hand that to the evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robustzoo.hub.load import resolve_folder
from robustzoo.registry import find_entry
from robustzoo.verification.verify import VerificationReport
from robustzoo.verification.verify import verify as verify_folder


def verify(
    name: str, *, mode: str = "replay", card: str | Path | None = None, **options: Any
) -> VerificationReport:
    """Check the claims of a model's card against its weights.

    Args:
        name: registry name, `local-dir:FOLDER`, or the path of a model folder.
        mode: `replay` (seconds: clean pass and every witness), `spot` (a first tier on all images, then the
            whole protocol on a random sample) or `full` (the whole protocol again).
        card: another card than the folder's own README.md.
        options: passed on to `robustzoo.verification.verify.verify` (tolerance, seed, workers, ...).

    Raises:
        UnknownName, NotPublished: the name has no weights to verify.
        HashMismatch: the weights are not those that the registry or the evidence name.
        FolderError: the folder of a registered name is of another recipe or size than the name pins.
        CardError: the card is missing or has no claims.
    """
    folder = resolve_folder(name)
    item = find_entry(name)
    sha256 = item.weights.sha256 if item is not None and item.weights is not None else None
    return verify_folder(
        folder, card=None if card is None else Path(card), mode=mode, sha256=sha256, **options
    )
