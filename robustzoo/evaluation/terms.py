"""What an evaluation is: its terms, what differs between two, and the files that hold its result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import robustzoo
from robustzoo import atomic_files
from robustzoo.cards.evidence import Evidence, EvidenceError, read_evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import OWN_DATA_MARK
from robustzoo.registry.dataset_files import is_own

if TYPE_CHECKING:
    from robustzoo.evaluation.journal import Journal
    from robustzoo.evaluation.ledger import Ledger
    from robustzoo.evaluation.prepare import Prepared

# Terms that an Evidence states only where they are not the rule.
_OPTIONAL = ("search", "smaller_epsilons", "shard")
# What two epsilons of one curve share.
CURVE = ("model", "protocol", "dataset", "seed", "micro_batch_size", "search", "shard")
# What two models' results share that answer the same question, and how people call it.
QUESTION = {
    "dataset.digest": "images (digest)",
    "dataset.indices": "positions",
    "threat_model": "threat model",
    "protocol": "protocol",
    "dataset.num_classes": "number of classes",
}
_LONGEST_STEM = 150  # of a file's name without its ending; 255 bytes are the limit of most systems
_WAYS_OUT = "choose another folder (out=..., on the command line --out DIR), or delete"


# What an evaluation is ------------------------------------------------------------------------------------


def terms_of(model: dict[str, Any], ready: Prepared, smaller: Evidence | None = None) -> dict[str, Any]:
    """Which evaluation this is, as Evidence states it (see `Evidence.key`): known before the attack.

    Args:
        model: {"name", "sha256"}.
        smaller: the Evidence that is carried over from a smaller epsilon.
    """
    work, subset, dataset = ready.work, ready.subset, ready.dataset
    own, named = is_own(dataset.key), len(dataset.classes) == work.num_classes
    terms: dict[str, Any] = {
        "model": model,
        "threat_model": {"norm": work.threat_model.norm, "epsilon": work.threat_model.epsilon_text},
        "protocol": work.protocol.to_json(),
        "dataset": {
            "id": dataset.key,
            "split": dataset.split,
            "subset": subset.id,
            "num_classes": work.num_classes,
            "image_shape": list(dataset.image_shape),
            "indices": subset.indices,
            "digest": subset.digest,
            **({} if dataset.transform is None else {"transform": dataset.transform}),
            **({"classes": list(dataset.classes)} if (own or dataset.found_by_name) and named else {}),
        },
        "seed": work.seed,
        "micro_batch_size": work.micro_batch_size,
    }
    if work.precision != "float32" or work.compiled:
        terms["search"] = {"precision": work.precision, "compiled": work.compiled}
    if smaller is not None:
        before = smaller.doc.get("smaller_epsilons", [])
        terms["smaller_epsilons"] = [*before, smaller.doc["threat_model"]["epsilon"]]
    return terms


def journal_key(terms: dict[str, Any], weights: str, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """What must be equal for an evaluation to go on from a journal: all that its result may depend on."""
    return {
        **whole_terms(terms),
        "weights": weights,
        "fingerprint": fingerprint,
        "robustzoo": robustzoo.__version__,
    }


def shard_terms(shard: Evidence) -> dict[str, Any]:
    """What all shards of one evaluation share: its terms but for the part, the weights included."""
    terms = whole_terms(shard.key())
    stated = terms.pop("shard")
    return {**terms, "number of shards": stated["count"], "weights": stated["weights"]}


def whole_terms(terms: dict[str, Any]) -> dict[str, Any]:
    """With None for those that are not stated."""
    return {**dict.fromkeys(_OPTIONAL), **terms}


def evidence_of(
    terms: dict[str, Any], ledger: Ledger, ready: Prepared, workers: int, journal: Journal | None = None
) -> Evidence:
    """The document of a finished ledger, which hands its points over; they are in memory alone.

    journal: of what earlier sessions did.
    """
    sessions = {"sessions": 1 + journal.sessions} if journal and journal.sessions else {}
    run = run_of(ready, workers, journal.elapsed if journal else 0.0)
    run |= {**sessions, "zero_gradients": dict(sorted(ledger.zero_gradients.items()))}
    evidence = Evidence.build(
        **{**terms, "threat_model": stated_threat_model(terms)},
        samples=ledger.samples(),
        passes=ledger.passes,
        run=run,
    )
    evidence.witness_set = ledger.hand_over_witnesses(terms["dataset"]["image_shape"])
    return evidence


def stated_threat_model(terms: dict[str, Any]) -> str:
    """As text: linf:8/255."""
    return "{norm}:{epsilon}".format(**terms["threat_model"])


def run_of(ready: Prepared, workers: int, before: float = 0.0) -> dict[str, Any]:
    """When, how long and on what an evaluation ran that now ends. before: seconds of earlier sessions."""
    from robustzoo.evaluation import machine  # torch, which nobody needs who only reads and compares

    seconds = (datetime.now(timezone.utc) - ready.started).total_seconds()
    return {
        "started": ready.started.isoformat(timespec="seconds"),
        "wall_seconds": round(seconds + before, 3),
        "device": str(ready.asked.device),
        "threads": ready.fingerprint["threads"],
        "workers": workers,
        "fingerprint": ready.fingerprint,
        "versions": machine.versions(),
    }


# What differs ---------------------------------------------------------------------------------------------


def differences(
    there: dict[str, Any], here: dict[str, Any], names: Iterable[str] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Term -> both values, where they differ.

    Args:
        names: of the terms that count, "dataset.digest" for one within another; default: those of `here`.
    """
    here = json.loads(json.dumps(here))
    pairs = {name: (_term(there, name), _term(here, name)) for name in (here if names is None else names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def differing_terms(there: dict[str, Any], here: dict[str, Any]) -> str:
    """In words, in which terms of `here` two evaluations differ; empty where they agree."""
    return "; ".join(_difference(name, *pair) for name, pair in differences(there, here).items())


def require_same_but_epsilon(smaller: Evidence, terms: dict[str, Any]) -> None:
    """Raise RobustzooError unless `smaller` differs from the evaluation of `terms` in its epsilon alone."""
    for term in differences(smaller.key(), terms, CURVE):
        raise RobustzooError(
            f"the evaluation at {smaller.threat_model} differs from this one in its "
            f"{term.replace('_', ' ')}; expected all but epsilon to be equal along a curve"
        )


def _term(terms: dict[str, Any], name: str) -> Any:
    first, _, second = name.partition(".")
    return terms[first][second] if second else terms.get(first)


def _difference(term: str, there: Any, here: Any) -> str:
    if term == "threat_model":
        there, here = (
            f"{t.get('norm')}:{t.get('epsilon')}" if isinstance(t, dict) else t for t in (there, here)
        )
    elif isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        return f"{term} differs in {', '.join(keys)}"
    shown = ["none" if value is None else value for value in (there, here)]
    return f"{term.replace('_', ' ')} {shown[0]} there, {shown[1]} here"


# Its files ------------------------------------------------------------------------------------------------


@contextmanager
def reserved(out: Path | None) -> Iterator[None]:
    """Within the block no other run writes into `out/evidence`. Leaves no file or folder of its own behind.

    Without a folder, on Windows, and on file systems that know no locks, nothing is held.

    Raises:
        RobustzooError: another run holds the folder.
    """
    if out is None:
        yield
        return
    folder = (out / "evidence").absolute()
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        held = atomic_files.hold(folder)
    except atomic_files.FolderInUse as error:
        raise RobustzooError(
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


def place_of(terms: dict[str, Any], out: Path) -> Path:
    """The document's file: `out/evidence/<protocol>.<dataset>-<split>-<subset>.json`."""
    dataset = terms["dataset"]
    stem = f"{terms['protocol']['name']}.{dataset['id']}-{dataset['split']}-{dataset['subset']}"
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", stem)
    # A digest tells apart what the file name cannot: other letters, and long names. (The colon of
    # "folder:NAME" needs none: no other ids have it.)
    if name != stem.replace(OWN_DATA_MARK, "_", 1) or len(name) > _LONGEST_STEM:
        name = (
            f"{name[:_LONGEST_STEM]}-{hashlib.sha256(stem.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        )
    return out / "evidence" / f"{name}.json"


def check_writable(folder: Path) -> None:
    """Refuse a place for results that cannot be written, before hours are spent; leaves nothing behind.

    Raises:
        RobustzooError: the folder, or the nearest one above that exists, is a file or may not be written.
    """
    if (reason := atomic_files.why_unwritable(folder / "evidence")) is not None:
        raise RobustzooError(
            f"out is {str(folder)!r}, but {reason}; expected a folder, or a path where one can be made"
        )


def refuse_to_replace(path: Path, terms: dict[str, Any]) -> None:
    """Raise RobustzooError where `path` holds the result of another evaluation than that of `terms`.

    Args:
        terms: what `Evidence.key` says, with or without the schema.
    """
    if not path.exists():
        return
    try:
        there = read_evidence(path, validate=False).key()
    except EvidenceError as error:
        raise RobustzooError(
            f"{path} would be overwritten, and it is no Evidence that can be read ({error.problem}): "
            f"{_WAYS_OUT} this file"
        ) from error
    if problem := differing_terms(there, whole_terms(terms)):
        raise RobustzooError(
            f"{path} holds the result of another evaluation, which would be lost: {problem}. "
            f"Expected the same evaluation, or a new file: {_WAYS_OUT} this file and its witnesses"
        )


def write_evidence(evidence: Evidence, out: Path) -> Path:
    """Write its witness set, then the document that names it, into `out/evidence`; returns the document's
    path.

    The document comes last, so that one that is there has its witnesses. Call it within `reserved(out)`.

    Raises:
        RobustzooError: the place is taken by the result of another evaluation; nothing is written.
    """
    path = place_of(evidence.key(), out)
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
    evidence = read_evidence(path)
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
