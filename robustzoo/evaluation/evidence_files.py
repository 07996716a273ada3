"""Where an evaluation's files go: a folder held by one run at a time, and never another result's place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from robustzoo import folder_lock
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.witnesses import Witnesses
from robustzoo.evaluation.guards import GuardError

_WAYS_OUT = "choose another folder (out=..., on the command line --out DIR), or delete"


@contextmanager
def reserved(out: Path | None) -> Iterator[None]:
    """Within the block no other run writes into `out/evidence`. Leaves no file or folder of its own behind.

    Without a folder, on Windows, and on file systems that know no locks, nothing is held.

    Raises:
        GuardError: another run holds the folder.
    """
    if out is None:
        yield
        return
    folder = (out / "evidence").absolute()
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        held = folder_lock.hold(folder)
    except folder_lock.FolderInUse as error:
        raise GuardError(
            f"another evaluation is writing into {folder}; expected one at a time, since their files "
            "would mix: wait for it, or choose another folder (out=..., on the command line --out DIR)"
        ) from error
    try:
        yield
    finally:
        if held is not None:
            (folder / folder_lock.NAME).unlink(missing_ok=True)  # while it is held, so it is ours
            held.close()
        with suppress(OSError):  # the first that is not empty ends it
            for place in made:
                place.rmdir()


def evidence_path(out: Path, protocol: str, dataset: dict[str, Any]) -> Path:
    """The document's file: `out/evidence/<protocol>.<dataset>-<split>-<subset>.json`."""
    stem = f"{protocol}.{dataset['id']}-{dataset['split']}-{dataset['subset']}"
    return out / "evidence" / f"{re.sub(r'[^A-Za-z0-9._+-]', '_', stem)}.json"


def refuse_to_replace(path: Path, terms: dict[str, Any]) -> None:
    """Raise GuardError where `path` holds the result of another evaluation than that of `terms`.

    Args:
        terms: what `Evidence.key` says, or a part of it.
    """
    if not path.exists():
        return
    try:
        there = Evidence.load(path, validate=False).key()
    except EvidenceError as error:
        raise GuardError(
            f"{path} would be overwritten, and it is no Evidence that can be read ({error.problem}): "
            f"{_WAYS_OUT} this file"
        ) from error
    here = json.loads(json.dumps(terms))
    differing = [term for term in here if here[term] != there.get(term)]
    if differing:
        raise GuardError(
            f"{path} holds the result of another evaluation, which would be lost: "
            f"{'; '.join(_difference(term, there.get(term), here[term]) for term in differing)}. "
            f"Expected the same evaluation, or a new file: {_WAYS_OUT} this file and its witnesses"
        )


def write_evidence(evidence: Evidence, witnesses: Witnesses, out: Path) -> Path:
    """Write witnesses, then the document that names them, into `out/evidence`; returns the document's path.

    The document comes last, so that one that is there has its witnesses. Call it within `reserved(out)`.

    Raises:
        GuardError: the place is taken by the result of another evaluation; nothing is written.
    """
    path = evidence_path(out, evidence.doc["protocol"]["name"], evidence.doc["dataset"])
    refuse_to_replace(path, evidence.key())
    if len(witnesses):
        file = path.with_name(f"{path.stem}.witness.safetensors")
        sha256 = witnesses.save(file)
        evidence.doc["witnesses"] = {"file": file.name, "sha256": sha256, "count": len(witnesses)}
    evidence.save(path)
    return path


def _difference(term: str, there: Any, here: Any) -> str:
    """One term in which two evaluations differ, for a message."""
    if term == "threat_model":
        there, here = (f"{t['norm']}:{t['epsilon']}" if isinstance(t, dict) else t for t in (there, here))
    elif isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in here if here[key] != there.get(key)]
        return f"{term} differs in {', '.join(keys)}"
    return f"{term.replace('_', ' ')} {there} there, {here} here"
