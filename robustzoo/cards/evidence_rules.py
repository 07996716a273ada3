"""What makes an Evidence document valid: its JSON schema, and facts that must follow from each other."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

from robustzoo.cards import corruption_tables
from robustzoo.cards.sample_rules import count, is_plain, is_position, sample_problems
from robustzoo.cards.statistics import Accuracy
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.digests import json_digest
from robustzoo.registry.threat_model import ThreatModel
from robustzoo.streams import is_one_line, one_line

SCHEMA_ID = "robustzoo.evidence/1"
# The field's ensembles, each as strong as those before it and as any other; listings speak of the first.
ENSEMBLES = ("aa-standard", "aa-plus")
# Bounds are written with 9 decimals; older releases of scipy are good to fewer.
_BOUND_TOLERANCE = 1e-7
_LONGEST_TEXT = 1000  # characters
_DEEPEST = 30  # levels; ours have 6
_MOST_PIXELS = 2**27  # numbers of one image
_COUNTED = re.compile(r"(?:n|chosen|part)(\d{1,12})(?:-seed.*)?", re.ASCII)
_NEXT_STEP = "restore the file, or remove it and measure again with `robustzoo evaluate`"


class EvidenceError(RobustzooError):
    """Evidence that cannot be trusted. `path` names the offending field, for example `samples[3].robust`.

    `file` is the document's file where it was read from one; the message then says what to do about it.
    """

    def __init__(self, path: str, problem: str, file: str | None = None) -> None:
        text = f"evidence is invalid at {path}: {problem}"
        super().__init__(text if file is None else f"{file}: {text}\nNext: {_NEXT_STEP}")
        self.path = path
        self.problem = problem
        self.file = file


def check_document(doc: Any) -> None:
    """Raise EvidenceError at the first field that is malformed or contradicts another."""
    if isinstance(doc, dict) and "schema" in doc:
        check_schema_id(doc)
    _check_schema(_without_plain_items(doc), schema(), ())
    for path, problem in _contradictions(doc):
        raise EvidenceError(path, problem)


def check_schema_id(doc: Any) -> None:
    """Raise EvidenceError unless this is an object that calls itself an Evidence of this version."""
    if not isinstance(doc, dict):
        raise EvidenceError("the top level", f"expected an object, got {type(doc).__name__}")
    if doc.get("schema") != SCHEMA_ID:
        raise EvidenceError(
            "schema",
            f"{doc.get('schema')!r} is not {SCHEMA_ID!r}, the one this version reads; "
            "update robustzoo, or evaluate again with `robustzoo evaluate`",
        )


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12), read from the package data."""
    return json.loads(files("robustzoo.cards").joinpath("evidence.schema.json").read_text(encoding="utf-8"))


def check_samples(samples: Any) -> None:
    """Raise EvidenceError where the `samples` section alone is malformed; its facts are not compared.

    The schema is asked about those alone that are not plainly good: one by one that takes seconds for 50,000.
    """
    rules = {**schema()["properties"]["samples"], "$defs": schema()["$defs"]}
    if not isinstance(samples, list) or not samples:
        _check_schema(samples, rules, ("samples",))
    for i, sample in enumerate(samples):
        if not is_plain(sample):
            _check_schema(sample, {**rules["items"], "$defs": rules["$defs"]}, ("samples", i))


def _without_plain_items(doc: Any) -> Any:
    """The document with its first sample and index alone, after the others have been checked here."""
    if not isinstance(doc, dict):
        return doc
    samples, dataset = doc.get("samples"), doc.get("dataset")
    if isinstance(samples, list):
        check_samples(samples)
        doc = {**doc, "samples": samples[:1]}
    indices = dataset.get("indices") if isinstance(dataset, dict) else None
    if isinstance(dataset, dict) and isinstance(indices, list) and all(map(is_position, indices)):
        doc = {**doc, "dataset": {**dataset, "indices": indices[:1]}}
    return doc


def _check_schema(value: Any, rules: dict[str, Any], where: tuple[str | int, ...]) -> None:
    for error in _validator()(rules).iter_errors(value):
        # A place may be a key of the file's own, and a value may be anything.
        problem = one_line(_shortened(error.message))
        if error.validator in ("pattern", "maxLength") and error.schema == schema()["$defs"]["text"]:
            problem = _no_line(error.instance)
        raise EvidenceError(one_line(_path([*where, *error.absolute_path])), problem)


@functools.cache
def _validator() -> Any:
    """The class of validators: draft 2020-12, with integers that are written as integers."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema calls 3.0 an integer. Counts and ids written that way would not be the canonical bytes.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return extend(Draft202012Validator, type_checker=types)


def _path(parts: Iterable[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "the top level"


def _shortened(message: str, limit: int = 300) -> str:
    return message if len(message) <= limit else f"{message[: limit // 2]} ... {message[-limit // 2 :]}"


def _contradictions(doc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) for each fact that does not follow from the others; `doc` fits the schema."""
    yield from _texts(doc)
    yield from _threat_model(doc["threat_model"])
    yield from _image_shape(doc["dataset"]["image_shape"])
    yield from _order("dataset.indices", doc["dataset"]["indices"])
    named, classes = doc["dataset"].get("classes"), doc["dataset"]["num_classes"]
    if named is not None and len(named) != classes:
        yield "dataset.classes", f"{len(named)} names, and there are {classes} classes"
    ids = [sample["id"] for sample in doc["samples"]]
    yield from _order("samples", ids)
    expected = doc["dataset"]["indices"]
    if "shard" in doc:
        index, total = doc["shard"]["index"], doc["shard"]["count"]
        if index > total:
            yield "shard.index", f"shard {index} of {total}, expected 1..{total}"
        expected = expected[index - 1 :: total]
    if ids != expected:
        odd = sorted(set(ids) ^ set(expected))[:5]
        yield "samples", f"sample ids differ from dataset.indices; not in both: {odd}"
    yield from _smaller_epsilons(doc)
    yield from _protocol_problems(doc["protocol"])
    attacks = {member["attack"]: member for member in doc["protocol"]["members"]}
    for i, sample in enumerate(doc["samples"]):
        for field, problem in sample_problems(sample, doc["dataset"]["num_classes"], attacks):
            yield f"samples[{i}].{field}", f"{problem} (id {sample['id']})"
        if sample.get("micro_batch_size", 0) >= doc["micro_batch_size"]:
            yield (
                f"samples[{i}].micro_batch_size",
                f"{sample['micro_batch_size']} is stated where it is smaller than the run's "
                f"{doc['micro_batch_size']} alone (id {sample['id']})",
            )
    yield from _totals(doc)
    yield from corruption_tables.problems(doc)
    if doc["witnesses"] is not None:
        broken = sum(doc["counts"]["broken_by"].values())
        if doc["witnesses"]["count"] > broken:
            yield "witnesses.count", f"{doc['witnesses']['count']} witnesses for {broken} broken samples"


def _texts(doc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text at any depth is one line of visible characters. Those of the samples are equal to others:
    names of attacks, epsilons."""
    if not doc["model"]["name"].isprintable():
        yield "model.name", _no_line(doc["model"]["name"])
    rest: list[tuple[tuple[str | int, ...], Any]] = [((), {**doc, "samples": None})]
    while rest:
        where, value = rest.pop()
        if len(where) > _DEEPEST:
            yield one_line(_path(where[:3])), f"it is nested more than {_DEEPEST} levels deep"
            return
        if isinstance(value, str) and (len(value) > _LONGEST_TEXT or not is_one_line(value)):
            yield one_line(_path(where)), _no_line(value)
        elif isinstance(value, dict):
            rest += [((*where, "a key"), key) for key in value]
            rest += [((*where, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            rest += [((*where, i), item) for i, item in enumerate(value) if type(item) is not int]


def _no_line(text: str) -> str:
    shown = _shortened(ascii(text), 80)
    return f"{shown} is not printable text: expected one line of at most {_LONGEST_TEXT} visible characters"


def _image_shape(shape: list[int]) -> Iterator[tuple[str, str]]:
    if math.prod(shape) > _MOST_PIXELS:
        yield "dataset.image_shape", f"{shape} are more than {_MOST_PIXELS:,} numbers an image"


def _threat_model(stated: dict[str, str]) -> Iterator[tuple[str, str]]:
    try:
        parsed = ThreatModel.parse(f"{stated['norm']}:{stated['epsilon']}")
    except RobustzooError as error:
        yield "threat_model", str(error)
        return
    if parsed.epsilon_text != stated["epsilon"]:
        yield "threat_model.epsilon", f"{stated['epsilon']!r} must be written {parsed.epsilon_text!r}"


def _smaller_epsilons(doc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Those of a curve ascend below the document's own, and a sample names one of them or none."""
    smaller = doc.get("smaller_epsilons", [])
    norm = doc["threat_model"]["norm"]
    radii = []
    for i, text in enumerate((*smaller, doc["threat_model"]["epsilon"])):
        try:
            radii.append(ThreatModel.parse(f"{norm}:{text}").epsilon)
        except RobustzooError as error:
            yield f"smaller_epsilons[{i}]", str(error)
            return
    for i, (left, right) in enumerate(itertools.pairwise(radii)):
        if left >= right:
            yield (
                f"smaller_epsilons[{i}]",
                f"expected ascending values below epsilon, got {left} before {right}",
            )
    for i, sample in enumerate(doc["samples"]):
        stated = (sample["broken_by"] or {}).get("epsilon")
        if stated is not None and stated not in smaller:
            yield (
                f"samples[{i}].broken_by.epsilon",
                f"{stated} is none of smaller_epsilons ({', '.join(smaller) or 'there are none'})",
            )


def _order(field: str, ids: list[int]) -> Iterator[tuple[str, str]]:
    for i, (left, right) in enumerate(itertools.pairwise(ids)):
        if left >= right:
            yield f"{field}[{i + 1}]", f"ids must ascend without repeats, got {right} after {left}"


def _totals(doc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    counted, counts = count(doc["samples"]), doc["counts"]
    for field, value in counted.items():
        if counts[field] != value:
            yield f"counts.{field}", f"{counts[field]} stated, the samples give {value}"
    for field, key in (("clean_accuracy", "clean_correct"), ("robust_accuracy", "robust_correct")):
        expected, stated = Accuracy.of(counts[key], counts["n"]).to_json(), doc[field]
        for part in ("correct", "n", "value", "low", "high"):
            tolerance = _BOUND_TOLERANCE if part in ("low", "high") else 0.0
            # Written as "not within" so that NaN is caught too.
            if not abs(stated[part] - expected[part]) <= tolerance:
                yield f"{field}.{part}", f"{stated[part]} stated, the counts give {expected[part]}"


def protocol_digest(name: str, members: list[dict[str, Any]]) -> str:
    """sha256 (hex) of the canonical JSON of a protocol's name and all parameters of its attacks."""
    return json_digest({"name": name, "members": members})


def _protocol_problems(protocol: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) where the digest is not that of the name and the members, or a name comes twice."""
    digest = protocol_digest(protocol["name"], protocol["members"])
    if digest != protocol["digest"]:
        yield "protocol.digest", f"{protocol['digest']} stated, name and members give {digest}"
    attacks = [member["attack"] for member in protocol["members"]]
    for i, attack in enumerate(attacks):
        if attack in attacks[:i]:
            yield f"protocol.members[{i}].attack", f"{attack} is named twice"


def images_problem(doc: dict[str, Any]) -> str | None:
    """What in an Evidence document contradicts the catalog's dataset of that name, in words; None for
    nothing, and for images that do not carry such a name.

    "all" are all images of the split "test", with the pixels that the catalog knows.
    """
    dataset = doc["dataset"]
    spec = DATASETS.get(dataset["id"])
    if spec is None:
        return None
    name, n = f"{dataset['id']} {dataset['split']}", len(dataset["indices"])
    test = dataset["split"] == "test"
    size = spec.test_size if test else spec.train_size
    if dataset["num_classes"] != spec.num_classes:
        return f"it has {dataset['num_classes']} classes, {name} has {spec.num_classes}"
    if dataset["image_shape"][0] != spec.channels:
        return f"its images have {dataset['image_shape'][0]} channels, those of {name} {spec.channels}"
    if max(dataset["indices"]) >= size:
        return f"it has an image {max(dataset['indices'])}, and {name} has {size:,} images"
    if test and dataset["subset"] == "all" and n != size:
        return f"its {n:,} images are called all of {name}, which has {size:,}"
    if test and n == size and spec.test_digest not in (None, dataset["digest"]):
        return f"its digest {dataset['digest']} is not that of {name}, {spec.test_digest}: other images"
    counted = _COUNTED.fullmatch(dataset["subset"])
    if counted is not None and int(counted[1]) != n:
        return f"its {n:,} images are called {dataset['subset']}"
    return None
