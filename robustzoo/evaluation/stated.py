"""What a model folder states: its card's text, its Evidence, and the witnesses behind it."""

from __future__ import annotations

import stat
from pathlib import Path

from robustzoo.cards.claims import TERMS, CardError, Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.metadata import LARGEST_CARD
from robustzoo.cards.published import evidence_files
from robustzoo.cards.witnesses import Witnesses
from robustzoo.evaluation.judging import plural
from robustzoo.evaluation.verification_report import VerificationError
from robustzoo.models.folder import verify_sha256
from robustzoo.untrusted_files import read_text


def card_text(folder: Path, card: str | Path | None) -> str:
    """The text of the card, the folder's own or another. Raises: CardError where there is none."""
    path = folder / "README.md" if card is None else Path(card)
    try:
        found = stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise CardError(
            f"the card {path} cannot be read ({error.strerror or error})",
            "give yourself the permission to read its folder, or take a copy that you may read",
        ) from error
    except (OSError, ValueError):  # a name that is too long, for example
        found = False
    if not found:
        raise CardError(
            f"there is no card at {path}, so nothing is claimed",
            f"write it from the folder's evidence with `robustzoo card {folder}` (without evidence: "
            f"`robustzoo evaluate {folder}` first), or give another one as card=..., on the command line "
            "--card FILE",
        )
    try:
        return read_text(path, LARGEST_CARD)
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(
            f"the card {path} cannot be read as UTF-8 text: {error}",
            f"restore it, or write it anew with `robustzoo card {folder}`",
        ) from error


def evidence_documents(folder: Path) -> list[tuple[Evidence, Path]]:
    """Every Evidence of the folder with its file. Raises: VerificationError for none, EvidenceError."""
    paths = evidence_files(folder)
    if not paths:
        raise VerificationError(
            f"{folder / 'evidence'} holds no Evidence (*.json); expected what the card's numbers come from: "
            f"get the complete model folder, or measure with `robustzoo evaluate {folder}`"
        )
    return [(Evidence.load(path), path) for path in paths]


def closest(claim: Claim, documents: list[tuple[Evidence, Path]]) -> tuple[Evidence, Path]:
    """The document that differs from the claim in the fewest terms: in none, for an honest card."""
    return min(documents, key=lambda pair: len(claim.differences(Claim.from_evidence(pair[0]), TERMS)))


def check_witness_file(evidence: Evidence, path: Path) -> None:
    """Refuse a witness file that is not the one of the Evidence; a missing one is noted later."""
    stated = evidence.doc["witnesses"]
    if stated is not None and path.with_name(stated["file"]).is_file():
        verify_sha256(
            path.with_name(stated["file"]),
            stated["sha256"],
            next_step="restore the witness file from a fresh copy of the model folder. Replay needs no more "
            "than the right file; without any, `--mode spot` or `full` attacks the model again",
        )


def load_witnesses(evidence: Evidence, path: Path, notes: list[str]) -> Witnesses | None:
    """The witness file, or None with a note that says what cannot be tested without it."""
    stated = evidence.doc["witnesses"]
    if stated is None:
        if evidence.doc["counts"]["broken_by"]:
            notes.append(
                "the Evidence names no witness file, so replay cannot show that any image was broken"
            )
        return None
    file = path.with_name(stated["file"])
    if not file.is_file():
        notes.append(
            f"the witness file {stated['file']} ({plural(stated['count'], 'witness', 'es')}) is missing, so "
            "replay cannot test how many images are robust: restore it, or use mode spot or full"
        )
        return None
    return Witnesses.load(file, stated["sha256"], stated["count"])
