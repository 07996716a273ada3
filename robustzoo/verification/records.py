"""Records of verifications beside the weights, `verified/<date>-<who>.json`: who, how, and the outcome."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robustzoo import __version__, atomic_files
from robustzoo.cards.claims import Claim
from robustzoo.errors import RobustzooError
from robustzoo.streams import is_one_line
from robustzoo.untrusted_files import read_text

if TYPE_CHECKING:
    from robustzoo.cards.evidence import Evidence
    from robustzoo.verification.report import VerificationReport

SCHEMA = "robustzoo.verified/1"
FOLDER = "verified"
_LARGEST = 2**20  # bytes; a record of four claims has about 3,000
_MOST = 1000  # files that are looked at
_WHO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_TEXTS = ("who", "date", "mode", "outcome", "sha256")
_TERMS = (
    *("threat_model", "dataset_id", "split", "subset", "dataset_digest", "protocol", "protocol_digest"),
    *("n", "clean_correct", "robust_correct"),
)


@dataclass(frozen=True)
class Record:
    """One recorded verification. It says what its author says: nothing signs it."""

    who: str
    date: str
    mode: str
    outcome: str
    sha256: str
    claims: tuple[tuple[object, ...], ...] = ()  # of each its _TERMS

    def to_json(self) -> dict[str, str]:
        return {key: getattr(self, key) for key in _TEXTS}

    def is_about(self, evidence: Evidence) -> bool:
        """Whether a claim that was verified is what this Evidence gives."""
        claim = Claim.from_evidence(evidence)
        return tuple(str(getattr(claim, term)) for term in _TERMS) in self.claims

    def __str__(self) -> str:
        return f"{self.outcome} by {self.who}, {self.mode}, {self.date}"


def check_who(who: str) -> str:
    """The name, where it can be part of a file's name.

    Raises:
        RobustzooError: it cannot.
    """
    if not _WHO.fullmatch(who):
        raise RobustzooError(
            f"who is {who[:80]!r}; expected up to 64 letters, digits and . _ - (a login, such as ada)"
        )
    return who


def record(folder: Path, report: VerificationReport, who: str) -> Path:
    """Write what a verification found into the model folder; the same who on the same day is written anew.

    Raises:
        RobustzooError: a `who` that cannot be part of a file's name.
        OSError: the folder cannot be written.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    found = report.to_json()
    document = {
        "schema": SCHEMA,
        "who": check_who(who),
        "date": now.date().isoformat(),
        "time": now.isoformat(timespec="seconds"),
        **{key: found[key] for key in ("name", "mode", "outcome", "sha256", "claims")},
        "versions": _versions(),
    }
    path = folder / FOLDER / f"{document['date']}-{who}.json"
    path.parent.mkdir(exist_ok=True)
    atomic_files.write_text(path, json.dumps(document, indent=1) + "\n")
    return path


def read_records(folder: Path, sha256: str) -> tuple[Record, ...]:
    """The records of these weights, newest first. What is no record, or is about other weights, is left out:
    a listing does not fail by what somebody put there."""
    try:
        files = sorted((folder / FOLDER).glob("*.json"), reverse=True)[:_MOST]
    except OSError:
        return ()
    found = [item for file in files if (item := _read(file)) is not None and item.sha256 == sha256]
    return tuple(sorted(found, key=lambda item: item.date, reverse=True))


def _read(file: Path) -> Record | None:
    try:
        document = json.loads(read_text(file, _LARGEST))
        values = {key: document[key] for key in _TEXTS}
        datetime.date.fromisoformat(values["date"])
        claims = tuple(tuple(str(item["claim"][term]) for term in _TERMS) for item in document["claims"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if document.get("schema") != SCHEMA or not _WHO.fullmatch(values["who"]):
        return None
    if not all(isinstance(text, str) and len(text) <= 80 and is_one_line(text) for text in values.values()):
        return None
    return Record(**values, claims=claims)


def _versions() -> dict[str, str]:
    import platform

    import torch

    return {
        "robustzoo": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
