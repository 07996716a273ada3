"""The model folders of a repository, and what is wrong with each: its card, its hashes, a replay of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo.cards.check import lint_card, picture_problem
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence, evidence_files
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import LARGEST_CARD, Card, CardError
from robustzoo.errors import RobustzooError
from robustzoo.hub.files import WEIGHTS, check_files
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import read_configuration
from robustzoo.registry.recipes import Recipe
from robustzoo.untrusted_files import read_text

if TYPE_CHECKING:
    from robustzoo.verification.report import VerificationReport

MODES = ("auto", "lint", "replay", "spot", "full")
BAD = "bad"  # the outcome of a folder whose files are not as they must be
GOOD = ("well formed", "consistent", "confirmed")
CARD = "README.md"


@dataclass
class Inspection:
    """What was found in one model folder.

    Attributes:
        outcome: of the replay or the attacks, "bad" where a file is not as it must be, "well formed" where
            no more than that was asked.
        steps: "lint", "hash" and the mode -> "ok", an outcome, or "bad".
        reasons: what is wrong, in sentences.
    """

    folder: Path
    name: str = "?"
    outcome: str = "well formed"
    exit_code: int = 0
    steps: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    report: VerificationReport | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {key: value for key, value in vars(self).items() if key not in ("folder", "report")}
        report = None if self.report is None else self.report.to_json()
        return {"folder": self.folder.as_posix(), **fields, "report": report}


def changed_folders(since: str | None) -> list[Path]:
    """The model folders of this git repository, relative to the current folder, in order.

    Args:
        since: a commit that there is: only folders with a file that differs from it. None: all of them.

    Raises:
        RobustzooError: this is no git repository.
    """
    if since is None:
        return _folders(_git("ls-files", "-z"))
    return _folders(_git("diff", "--name-only", "--relative", "--no-renames", "-z", since, "--"))


def has_commit(name: str) -> bool:
    """Whether this git repository has a commit of that name; forty zeros, of a new branch, are none."""
    try:
        return bool(_git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"))
    except RobustzooError:
        return False


def _git(*arguments: str) -> list[Path]:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise RobustzooError("git is not installed: name the model folders") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise RobustzooError(f"git {arguments[0]} failed: {told or 'no reason given'}")
    return [Path(part.decode(errors="surrogateescape")) for part in done.stdout.split(b"\0") if part]


def _folders(files: Iterable[Path]) -> list[Path]:
    found = {folder for file in files if (folder := folder_of(file)) is not None}
    return sorted(found)


def named_folders(path: Path) -> list[Path]:
    """The model folder that `path` is or is in; else, for a folder, all model folders in it.

    Raises:
        RobustzooError: a folder without any. (A file may be in none: hooks name every file that changed.)
    """
    if (folder := folder_of(path)) is not None or not path.is_dir():
        return [] if folder is None else [folder]
    if not (found := _folders(file for name in (WEIGHTS, CARD) for file in path.rglob(name))):
        raise RobustzooError(
            f"{path} has no model folder in it, so no card was checked; expected folders with {WEIGHTS} and "
            f"{CARD}"
        )
    return found


def folder_of(path: Path) -> Path | None:
    """The model folder that a file (or a folder) is part of; None where it is in none."""
    for place in (path, *path.parents):
        if (place / WEIGHTS).is_file() or _has_our_card(place / CARD):
            return place
    return None


def _has_our_card(path: Path) -> bool:
    try:
        return "robustzoo" in Card.read(read_text(path, LARGEST_CARD)).block
    except (OSError, UnicodeDecodeError, CardError):
        return False


def inspect(folder: Path, mode: str = "auto", **options: Any) -> Inspection:
    """Lint the card, compare the hashes, then replay the claims or attack again: all that can be done.

    Args:
        mode: "auto" is "spot" where torch sees a GPU, else "replay"; "lint" loads no torch.
        options: of `robustzoo.verification.verify.verify`.
    """
    found = Inspection(folder)
    for step, check in (("lint", _lint), ("hash", _hash)):
        reasons = _attempt(check, found)
        found.steps[step] = BAD if reasons else "ok"
        found.reasons += [f"{step}: {reason}" for reason in reasons]
    if mode != "lint":
        _verify(found, mode, options)
    if any(step == BAD for step in found.steps.values()) and found.exit_code != 1:
        found.outcome, found.exit_code = BAD, 2
    return found


def _attempt(check: Callable[[Inspection], list[str]], found: Inspection) -> list[str]:
    """The problems that a check returns, or the one that it ended with."""
    try:
        return check(found)
    except RobustzooError as error:
        return [_said(error)]
    except (OSError, UnicodeDecodeError) as error:
        where = getattr(error, "filename", None) or found.folder / CARD
        return [f"{where}: {getattr(error, 'strerror', None) or error}"]


def _said(error: Exception) -> str:
    return getattr(error, "problem", None) or str(error)


def _lint(found: Inspection) -> list[str]:
    """The card is what recipe and evidence give. Also learns the model's name."""
    folder = found.folder
    text = read_text(folder / CARD, LARGEST_CARD)
    found.name = str(Card.read(text).model_name)
    documents = all_evidence(folder)
    if not documents:
        return ["the folder has no evidence, so nothing stands behind the card"]
    problems = lint_card(text, recipe=_described(folder), evidence=documents)
    picture = picture_problem(folder, documents, Card.read(text).layout)
    return problems if picture is None else [*problems, picture]


def _described(folder: Path) -> Recipe | Imported:
    """What config.json says that the model is, without building its network."""
    ours = read_configuration(folder).get("robustzoo")
    if not isinstance(ours, dict):
        raise RobustzooError('config.json has no "robustzoo" block')
    try:
        if "imported" in ours:
            return Imported.from_json(ours["imported"])
        return Recipe.from_json(ours["recipe"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RobustzooError(f"config.json: the recipe is invalid: {error}") from error


def _hash(found: Inspection) -> list[str]:
    """Weights and witness files are those that card and evidence name."""
    folder = found.folder
    if not (folder / WEIGHTS).is_file():
        return [f"{WEIGHTS} is not there, so nothing can be checked of it"]
    check_files(folder)
    sha256 = sha256_file(folder / WEIGHTS)
    stated = {"the card": Card.read(read_text(folder / CARD, LARGEST_CARD)).weights_sha256}
    problems = []
    for path in evidence_files(folder):
        doc = Evidence.load(path).doc
        stated[path.name] = doc["model"]["sha256"]
        witnesses = doc["witnesses"]
        if witnesses is None:
            continue
        file = path.with_name(witnesses["file"])
        if not file.is_file():
            problems.append(f"{path.name} names {file.name}, which is not there")
        elif sha256_file(file) != witnesses["sha256"]:
            problems.append(f"{file.name} is another file than {path.name} names (sha256)")
    for place, named in stated.items():
        if named != sha256:
            problems.append(f"{place} is about weights {named}, and {WEIGHTS} is {sha256}")
    return problems


def _verify(found: Inspection, mode: str, options: dict[str, Any]) -> None:
    from robustzoo.verification.verify import verify

    if mode == "auto":
        import torch

        mode = "spot" if torch.cuda.is_available() else "replay"
        options = {"device": "cuda" if mode == "spot" else None} | options
    try:
        report = verify(found.folder, mode=mode, **options)
    except (RobustzooError, OSError) as error:
        found.steps[mode] = BAD
        found.reasons.append(f"{mode}: {_said(error)}")
        return
    found.report, found.steps[mode] = report, report.outcome
    found.outcome, found.exit_code = report.outcome, report.exit_code
    if report.outcome not in GOOD:
        found.reasons += [f"{mode}: {line}" for claim in report.claims for line in _why(claim)]


def _why(claim: Any) -> Sequence[str]:
    """The lines of a claim's report that say why it does not stand."""
    if claim.differences:
        return [f"{key}: claimed {a}, found {b}" for key, (a, b) in claim.differences.items()]
    wrong = [claim.reasons[part] for part, value in claim.parts.items() if value == "refuted"]
    return [*(wrong or claim.reasons.values()), *claim.notes]
