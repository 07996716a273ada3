"""What a verification says: per claim three parts and an outcome, for people and for machines."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robustzoo.cards.claims import Claim
from robustzoo.errors import RobustzooError
from robustzoo.streams import one_line

HOLDS, REFUTED, NOT_TESTED = "holds", "refuted", "not tested"
# Outcome -> exit code, the gravest first: a report on several claims has the outcome of the gravest.
EXIT_CODES = {"refuted": 1, "not comparable": 4, "inconclusive": 3, "consistent": 0, "confirmed": 0}


class LogNotWritten(RobustzooError):
    """The log could not be written; `report` is what was found."""

    def __init__(self, message: str, report: VerificationReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass
class ClaimReport:
    """One claim, checked.

    Attributes:
        outcome: a key of EXIT_CODES.
        parts: clean (|C' - C| <= tolerance), upper (robust <= K + tolerance) and lower (robust >= K -
            tolerance), each "holds", "refuted" or "not tested".
        numbers: counts claimed and found, in images; a `_difference` is found - claimed (`robust_difference`
            where they were counted: a replay bounds the robust images by `robust_at_most`, a spot check by
            `robust_least` and `robust_most`).
        reasons: one line for each part, with its numbers.
        differences: field -> (claimed, found), where the claim cannot be compared.
        notes: what else a reader should know.
        masking: signs of gradient masking, in words, that the attacks of this run met, or of a replay the
            Evidence; with any, the robust accuracy may be overestimated, whatever the outcome.
        seed: of the attacks; None for a replay.
        entropy: of the survivors that a spot check drew, hexadecimal; None where nothing was drawn.
        fingerprint: field -> (in the evidence, here), where this machine differs from the evidence's.
    """

    claim: Claim
    tolerance: int
    outcome: str
    parts: dict[str, str]
    numbers: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    differences: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    masking: list[str] = field(default_factory=list)
    seed: int | None = None
    entropy: str | None = None
    fingerprint: dict[str, tuple[Any, Any]] | None = None

    @classmethod
    def untested(cls, claim: Claim, tolerance: int) -> ClaimReport:
        """The report of a claim before anything is known."""
        return cls(claim, tolerance, "not comparable", dict.fromkeys(("clean", "upper", "lower"), NOT_TESTED))

    def text(self) -> str:
        """Lines for people."""
        claim = self.claim
        lines = [
            f"claim: {claim.clean_correct} clean and {claim.robust_correct} robust of {claim.n} images "
            f"({claim.dataset_id} {claim.split}, {claim.subset}), {claim.threat_model}, {claim.protocol}, "
            f"tolerance {self.tolerance}"
        ]
        for name, (claimed, found) in self.differences.items():
            lines.append(f"  not comparable in {name}: claimed {_short(claimed)}, found {_short(found)}")
        if not self.differences:
            lines += [f"  {part:<6} {self.parts[part]:<11} {self.reasons[part]}" for part in self.parts]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  masking: {sign}" for sign in self.masking]
        if self.seed is not None:
            lines.append(f"  seed of this run: {self.seed}")
        if self.entropy is not None:
            lines.append(f"  entropy of the draw: {self.entropy}")
        if self.fingerprint is not None:
            differs = ", ".join(f"{k} {there} -> {here}" for k, (there, here) in self.fingerprint.items())
            lines.append(
                f"  machine: differs from the evidence's ({differs}); a few borderline images may flip"
                if differs
                else "  machine: same fingerprint as the evidence's, so equal runs give equal counts"
            )
        lines.append(f"  outcome: {self.outcome}")
        return "\n".join(map(one_line, lines))  # no name or value of a file begins a line of its own

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON; the claim as its own fields, the threat model as text."""
        claim = {**asdict(self.claim), "threat_model": str(self.claim.threat_model)}
        fields = {key: value for key, value in vars(self).items() if key != "claim"}
        for key in ("differences", "fingerprint"):
            if fields[key] is not None:
                fields[key] = {name: [_plain(value) for value in pair] for name, pair in fields[key].items()}
        return {"claim": claim, **fields}


@dataclass
class VerificationReport:
    """All claims of one card, checked against one model folder.

    `outcome`, `parts` and `numbers` are those of the claim with the gravest outcome (see `claims` for each).
    `exit_code`: 0 confirmed or consistent, 1 refuted, 3 inconclusive (also consistent where confirmed was
    required), 4 not comparable. Bad input (2) is an exception instead.
    """

    name: str
    folder: str
    sha256: str
    mode: str
    claims: list[ClaimReport]
    require: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def _gravest(self) -> ClaimReport:
        order = list(EXIT_CODES)
        return min(self.claims, key=lambda report: order.index(report.outcome))

    @property
    def outcome(self) -> str:
        return self._gravest.outcome

    @property
    def parts(self) -> dict[str, str]:
        return self._gravest.parts

    @property
    def numbers(self) -> dict[str, int]:
        return self._gravest.numbers

    @property
    def exit_code(self) -> int:
        if self.require == "confirmed" and self.outcome == "consistent":
            return EXIT_CODES["inconclusive"]
        return EXIT_CODES[self.outcome]

    def text(self) -> str:
        """A report for people, several lines, no final newline."""
        masked = ", with signs of gradient masking" if any(report.masking for report in self.claims) else ""
        lines = [
            f"{self.name}: {self.outcome.upper()} by {self.mode}{masked}",
            f"weights: sha256 {self.sha256[:12]}..., as in the evidence",
        ]
        if any(report.outcome == "not comparable" for report in self.claims):
            lines.pop()
        lines += [f"note: {note}" for note in self.notes]
        lines = [one_line(line) for line in lines]
        lines += [report.text() for report in self.claims]
        if self.exit_code == EXIT_CODES["inconclusive"] and self.outcome == "consistent":
            lines.append("confirmation was required, and replay cannot give it: use mode spot or full")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "schema": "robustzoo.verification/1",
            "name": self.name,
            "folder": self.folder,
            "sha256": self.sha256,
            "mode": self.mode,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "notes": self.notes,
            "claims": [report.to_json() for report in self.claims],
        }


def plural(count: int, noun: str, ending: str = "s") -> str:
    """For people: "1 witness", "2 witnesses"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | type(None)) else str(value)


def check_log(path: Path) -> None:
    """Refuse a log that cannot be appended to, before anything is computed."""
    if "\0" in str(path):
        raise RobustzooError(f"log is {str(path)[:80]!r}, which cannot be a file: it holds a null byte")
    try:
        parent, exists, folder = path.parent.is_dir(), path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise RobustzooError(f"log is {str(path)[:80]!r}, which cannot be a file: {error}") from error
    if not parent:
        raise RobustzooError(
            f"log is {str(path)!r}, but its folder does not exist; create {path.parent}, or choose another "
            "file"
        )
    writable = path if exists else path.parent
    if folder or not os.access(writable, os.W_OK):
        raise RobustzooError(f"log is {str(path)!r}, which cannot be written; choose another file")


def append_to(path: Path, result: VerificationReport) -> None:
    """One line per verification, appended in one write."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"time": now, **result.to_json()}, sort_keys=True) + "\n")
    except OSError as failure:
        raise LogNotWritten(
            f"the log {path} cannot be written ({failure.strerror or failure}); the verification itself "
            f"ended as {result.outcome}. Choose another file",
            result,
        ) from failure
