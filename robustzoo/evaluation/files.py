"""Where an evaluation's files go: a folder held by one run at a time, and never another result's place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from robustzoo import atomic_files
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset, Subset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.guards import GuardError
from robustzoo.registry.catalog import OWN_DATA_MARK

# Terms that an Evidence states only where they are not the rule.
_OPTIONAL = ("search", "smaller_epsilons", "shard")
_LONGEST_STEM = 150  # of a file's name without its ending; 255 bytes are the limit of most systems
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
        held = atomic_files.hold(folder)
    except atomic_files.FolderInUse as error:
        raise GuardError(
            f"another evaluation is writing into {folder}; expected one at a time, since their files "
            "would mix: wait for it, or choose another folder (out=..., on the command line --out DIR)"
        ) from error
    try:
        yield
    finally:
        if held is not None:
            (folder / atomic_files.LOCK).unlink(missing_ok=True)  # while it is held, so it is ours
            held.close()
        with suppress(OSError):  # the first that is not empty ends it
            for place in made:
                place.rmdir()


def evidence_path(out: Path, protocol: str, dataset: ImageDataset, subset: Subset) -> Path:
    """The document's file: `out/evidence/<protocol>.<dataset>-<split>-<subset>.json`."""
    return _path(out, protocol, dataset.key, dataset.split, subset.id)


def place_of(evidence: Evidence, out: Path) -> Path:
    """`evidence_path` of a document that is there."""
    dataset = evidence.doc["dataset"]
    return _path(out, evidence.doc["protocol"]["name"], dataset["id"], dataset["split"], dataset["subset"])


def _path(out: Path, protocol: str, *dataset: str) -> Path:
    stem = f"{protocol}.{'-'.join(dataset)}"
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", stem)
    # A digest tells apart what the file name cannot: other letters, and long names. (The colon of
    # "folder:NAME" needs none: no other ids have it.)
    if name != stem.replace(OWN_DATA_MARK, "_", 1) or len(name) > _LONGEST_STEM:
        name = (
            f"{name[:_LONGEST_STEM]}-{hashlib.sha256(stem.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        )
    return out / "evidence" / f"{name}.json"


def refuse_to_replace(path: Path, terms: dict[str, Any]) -> None:
    """Raise GuardError where `path` holds the result of another evaluation than that of `terms`.

    Args:
        terms: what `Evidence.key` says, with or without the schema.
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
    if problem := differing_terms(there, {**dict.fromkeys(_OPTIONAL), **terms}):
        raise GuardError(
            f"{path} holds the result of another evaluation, which would be lost: {problem}. "
            f"Expected the same evaluation, or a new file: {_WAYS_OUT} this file and its witnesses"
        )


def differing_terms(there: dict[str, Any], here: dict[str, Any]) -> str:
    """In words, in which terms of `here` two evaluations differ; empty where they agree."""
    here = json.loads(json.dumps(here))
    differing = [term for term in here if here[term] != there.get(term)]
    return "; ".join(_difference(term, there.get(term), here[term]) for term in differing)


def write_evidence(evidence: Evidence, out: Path) -> Path:
    """Write its witness set, then the document that names it, into `out/evidence`; returns the document's
    path.

    The document comes last, so that one that is there has its witnesses. Call it within `reserved(out)`.

    Raises:
        GuardError: the place is taken by the result of another evaluation; nothing is written.
    """
    path = place_of(evidence, out)
    refuse_to_replace(path, evidence.key())
    if evidence.witness_set is not None and len(evidence.witness_set):
        file = path.with_name(f"{path.stem}.witness.safetensors")
        sha256 = evidence.witness_set.save(file)
        stored = {"file": file.name, "sha256": sha256, "count": len(evidence.witness_set)}
        evidence.doc["witnesses"] = stored
    evidence.save(path)
    return path


def with_witnesses(path: Path) -> Evidence:
    """The Evidence at `path` with its witness set, where it names one.

    Raises:
        EvidenceError: it cannot be read. RobustzooError: its witness file is missing or another one.
    """
    evidence = Evidence.load(path)
    stated = evidence.doc["witnesses"]
    if stated is None:
        return evidence
    try:
        evidence.witness_set = Witnesses.load(
            path.with_name(stated["file"]),
            stated["sha256"],
            stated["count"],
            evidence.doc["dataset"]["image_shape"],
        )
    except FileNotFoundError as error:
        raise RobustzooError(
            f"{path} names the witness file {stated['file']}, which is not beside it: restore it, or measure "
            "again (restart=True, on the command line --restart)"
        ) from error
    return evidence


def _difference(term: str, there: Any, here: Any) -> str:
    """One term in which two evaluations differ, for a message."""
    if term == "threat_model":
        there, here = (
            f"{t.get('norm')}:{t.get('epsilon')}" if isinstance(t, dict) else t for t in (there, here)
        )
    elif isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        return f"{term} differs in {', '.join(keys)}"
    shown = ["none" if value is None else value for value in (there, here)]
    return f"{term.replace('_', ' ')} {shown[0]} there, {shown[1]} here"
