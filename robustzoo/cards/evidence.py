"""Evidence: what one robustness evaluation found, image by image, as a JSON document anyone can re-check."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo import atomic_files
from robustzoo.cards.evidence_rules import (
    SCHEMA_ID,
    EvidenceError,
    check_document,
    check_samples,
    check_schema_id,
    count,
)
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.threat_model import ThreatModel
from robustzoo.streams import one_line
from robustzoo.untrusted_files import read_bytes

if TYPE_CHECKING:
    from robustzoo.cards.witnesses import Witnesses

__all__ = ["BrokenBy", "Evidence", "EvidenceError", "Verdict"]

# One image takes 150 to 250 bytes and about 11 values: room for 350,000 images, and for no more memory than a
# computer has.
_LARGEST_FILE = 80 * 10**6
_MOST_VALUES = 6 * 10**6
# What an evaluation finds; the rest of the document, `run` aside, says which evaluation it is.
_RESULTS = {"samples", "counts", "clean_accuracy", "robust_accuracy", "passes", "witnesses", "corruptions"}


@dataclass(frozen=True)
class BrokenBy:
    """The first success against an image: attack, target class (None: untargeted), restart, iteration.

    epsilon: on a curve, the smaller epsilon at which it came; else None.
    """

    attack: str
    target: int | None
    restart: int
    iteration: int
    epsilon: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What became of one image. `broken_by` is None where it is robust or misclassified unattacked."""

    id: int
    label: int
    clean_correct: bool
    robust: bool
    broken_by: BrokenBy | None
    predicted: int


@dataclass(repr=False)
class Evidence:
    """One Evidence document (`doc`, see evidence.schema.json) and the numbers that people ask it for.

    The document is plain JSON. Everything that may vary between equal runs is under `run`; the rest is the
    same bytes whenever the same evaluation is repeated on the same fingerprint. `witness_set` holds the
    points that fooled the model where an evaluation has just found them; a file does not bring them along.
    """

    doc: dict[str, Any]
    witness_set: Witnesses | None = field(default=None, compare=False, repr=False)

    @classmethod
    def build(
        cls,
        *,
        model: dict[str, Any],
        threat_model: ThreatModel | str,
        protocol: dict[str, Any],
        dataset: dict[str, Any],
        seed: int,
        micro_batch_size: int,
        samples: Iterable[dict[str, Any]],
        passes: dict[str, int],
        run: dict[str, Any],
        witnesses: dict[str, Any] | None = None,
        precision: str = "float32",
        search: dict[str, Any] | None = None,
        smaller_epsilons: Iterable[str] = (),
        shard: dict[str, Any] | None = None,
        corruptions: dict[str, Any] | None = None,
    ) -> Evidence:
        """A valid document from its sections: samples get sorted by id, counts and accuracies computed.

        Args:
            samples: {"id", "label", "predicted", "robust", "broken_by"} in any order.
            others: as in evidence.schema.json.

        Raises:
            EvidenceError: a section is malformed or contradicts another, or holds something that is not JSON
                (a tensor, a numpy number: convert it with int() or float()).
        """
        threat_model = ThreatModel.parse(threat_model)
        sections: dict[str, Any] = {
            "schema": SCHEMA_ID,
            "model": model,
            "threat_model": {"norm": threat_model.norm, "epsilon": threat_model.epsilon_text},
            "protocol": protocol,
            "dataset": dataset,
            "seed": seed,
            "micro_batch_size": micro_batch_size,
            "precision": precision,
            "samples": list(samples),
            "passes": passes,
            "witnesses": witnesses,
            "run": run,
        }
        # Stated only where there is something to state, so that a plain result stays plain.
        for name, section in (
            ("search", search),
            ("smaller_epsilons", [*smaller_epsilons]),
            ("shard", shard),
            ("corruptions", corruptions),
        ):
            if section:
                sections[name] = section
        # Through JSON and back: tuples become lists, and nothing of the caller's is shared.
        doc = json.loads(_written(sections, _encoder(",").encode))
        check_samples(doc["samples"])
        doc["samples"].sort(key=lambda sample: sample["id"])
        doc["counts"] = counts = count(doc["samples"])
        doc["clean_accuracy"] = Accuracy.of(counts["clean_correct"], counts["n"]).to_json()
        doc["robust_accuracy"] = Accuracy.of(counts["robust_correct"], counts["n"]).to_json()
        evidence = _of(doc)
        evidence.validate()
        return evidence

    @classmethod
    def load(cls, path: str | Path, *, validate: bool = True) -> Evidence:
        """Read a document: a result, and no shard.

        Args:
            validate: False skips all checks but the schema's name (for listings that must be quick, of files
                known to be good).

        Raises:
            EvidenceError: no such file, unreadable, not JSON, another schema, a malformed field, or facts
                that contradict each other. The message names the file and the next step.
        """
        evidence = read_evidence(path, validate=validate)
        try:
            evidence.require_whole()
        except EvidenceError as error:
            raise EvidenceError(error.path, f"{error.problem} (the file: {path})") from error
        return evidence

    @property
    def arithmetic(self) -> str:
        """For people: what the verdicts were reached in, and where the search was not the rule, that too."""
        search = self.doc.get("search")
        if search is None:
            return self.doc["precision"]
        ways = [search["precision"], *(["torch.compile"] if search["compiled"] else [])]
        return f"{self.doc['precision']} (search in {' with '.join(ways)}, what it found confirmed)"

    def save(self, path: str | Path) -> None:
        """Validate, then write the canonical bytes atomically.

        Raises:
            EvidenceError: as `validate`; nothing is written then.
        """
        self.validate()
        atomic_files.write_bytes(path, _canonical(self.doc))

    def validate(self) -> None:
        """Check the schema, and that counts, accuracies and order follow from the samples.

        Raises:
            EvidenceError: at the first offending field, named by its `path`.
        """
        check_document(self.doc)

    def deterministic_bytes(self) -> bytes:
        """The canonical bytes without `run`: equal for equal runs."""
        return _canonical({key: value for key, value in self.doc.items() if key != "run"})

    def key(self) -> dict[str, Any]:
        """Which evaluation this is: everything but `run` and the results. Equal keys may share a journal."""
        return {key: value for key, value in self.doc.items() if key != "run" and key not in _RESULTS}

    @property
    def caveat(self) -> str | None:
        """What to say before its numbers; None where they stand for themselves."""
        return None

    def require_whole(self) -> None:
        """Raise EvidenceError where this is a shard, which supports no claim."""

    @property
    def clean_accuracy(self) -> Accuracy:
        """Share of unperturbed images classified correctly."""
        return Accuracy(**self.doc["clean_accuracy"])

    @property
    def robust_accuracy(self) -> Accuracy:
        """Share of images that withstood the whole protocol: an upper bound on the true robust accuracy."""
        return Accuracy(**self.doc["robust_accuracy"])

    @property
    def verdicts(self) -> list[Verdict]:
        """One verdict an image, ascending by id."""
        return [
            Verdict(
                id=s["id"],
                label=s["label"],
                clean_correct=s["predicted"] == s["label"],
                robust=s["robust"],
                broken_by=None if s["broken_by"] is None else BrokenBy(**s["broken_by"]),
                predicted=s["predicted"],
            )
            for s in self.doc["samples"]
        ]

    @property
    def threat_model(self) -> ThreatModel:
        return ThreatModel.parse(f"{self.doc['threat_model']['norm']}:{self.doc['threat_model']['epsilon']}")

    @property
    def seed(self) -> int:
        return self.doc["seed"]

    def __float__(self) -> float:
        """The robust accuracy, in [0, 1]."""
        return float(self.robust_accuracy)

    def __str__(self) -> str:
        """The numbers in one line; `robustzoo.report` has more."""
        doc, robust = self.doc, self.robust_accuracy
        return (
            f"{one_line(doc['model']['name'])}: clean {self.clean_accuracy.percent}, robust {robust.percent} "
            f"({robust.correct} / {robust.n}, 95 % interval {robust.interval}) under {self.threat_model}, "
            f"{one_line(doc['protocol']['name'])}, {one_line(doc['dataset']['id'])} "
            f"{doc['dataset']['subset']}"
        )

    __repr__ = __str__


class EvidenceShard(Evidence):
    """A part of an evaluation: no result before all of them are merged. Only `read_evidence` reads one."""

    @property
    def caveat(self) -> str:
        shard = self.doc["shard"]
        return (
            f"this is shard {shard['index']} of {shard['count']}, a part of an evaluation and no result; "
            "merge all of them with `robustzoo evidence merge FOLDER... --out FOLDER`"
        )

    def require_whole(self) -> None:
        raise EvidenceError("shard", self.caveat)


def read_evidence(path: str | Path, *, validate: bool = True) -> Evidence:
    """A document that an evaluation wrote, a result or a shard. Arguments, errors as of `Evidence.load`."""
    try:
        text = read_bytes(path, _LARGEST_FILE)
    except OSError as error:
        raise EvidenceError(
            "the top level", f"the file cannot be read ({error.strerror or error})", str(path)
        ) from error
    try:
        doc = _parsed(text)
    except (ValueError, RecursionError) as error:
        raise EvidenceError("the top level", f"not a JSON document ({error})", str(path)) from error
    try:
        check_document(doc) if validate else check_schema_id(doc)
    except EvidenceError as error:
        raise EvidenceError(error.path, error.problem, str(path)) from error
    return _of(doc)


def _of(doc: dict[str, Any]) -> Evidence:
    return EvidenceShard(doc) if "shard" in doc else Evidence(doc)


def _canonical(doc: dict[str, Any]) -> bytes:
    """Sorted keys, one space of indent, a final newline; ASCII, so that no editor changes it."""
    return (_written(doc, _indented) + "\n").encode("ascii")


def _written(doc: dict[str, Any], write: Callable[[Any], str]) -> str:
    try:
        return write(doc)
    except (TypeError, ValueError) as error:
        raise EvidenceError("the top level", f"not JSON: {error}") from error


def _indented(value: Any, depth: int = 0) -> str:
    """`json.dumps(value, sort_keys=True, indent=1, allow_nan=False)`, whose encoder in C knows no indent:
    here it writes what holds no other list or object, so that 50,000 samples take a second."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    line = "\n" + " " * depth
    if not any(isinstance(part, dict | list | tuple) for part in parts):
        text = _encoder(f",{line} ").encode(value)
        return f"{text[0]}{line} {text[1:-1]}{line}{text[-1]}" if parts else text
    if isinstance(value, dict):
        keys = ((key, f"{_encoder('').encode(key)}: ") for key in sorted(value))
        inner = [name + _indented(value[key], depth + 1) for key, name in keys]
        return f"{{{line} {f',{line} '.join(inner)}{line}}}"
    return f"[{line} {f',{line} '.join(_indented(part, depth + 1) for part in value)}{line}]"


@cache
def _encoder(separator: str) -> json.JSONEncoder:
    return json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(separator, ": "))


def _parsed(text: bytes) -> Any:
    """Raises: ValueError, RecursionError for no JSON, a repeated key, a number that is not finite, or more
    values than any Evidence has: a short text can stand for 60 times its size in memory."""
    if (values := sum(map(text.count, (b",", b"[", b"{")))) > _MOST_VALUES:
        raise ValueError(f"about {values:,} values, expected at most {_MOST_VALUES:,}")
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {repeated[:80]!r} is there twice in one place")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:80]} is too large")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
