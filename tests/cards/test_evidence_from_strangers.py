"""Evidence that a stranger wrote: texts no terminal shows, files that are none, and thousands of images."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

import robustzoo
from robustzoo.cards import evidence_rules
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.sample_rules import is_plain

BUNDLED = sorted((Path(robustzoo.__file__).parent / "bundled").glob("*/evidence/*.json"))
HIDDEN = ["\n", "\r", "\x00", "\x1b[2J", "\x7f", "\x9b2J", "\u202e", "\u200b", "\u2028", "\ufeff"]


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.parts[-3])
def test_the_bundled_evidence_stays_valid_and_the_same_bytes(path, tmp_path):
    evidence = Evidence.load(path)
    evidence.save(tmp_path / "e.json")
    assert (tmp_path / "e.json").read_bytes() == path.read_bytes()


def put(doc, place, value):
    """Set the value at a place such as "run.fingerprint.x"; the last part may be new."""
    *path, last = place.split(".")
    for part in path:
        doc = doc[int(part) if part.isdigit() else part]
    doc[last] = value


TEXTS = [
    "model.name", "model.sha256", "protocol.name", "protocol.members.0.attack", "protocol.members.0.more",
    "dataset.id", "dataset.split", "dataset.subset", "run.device", "run.started", "run.anything",
    "run.fingerprint.processor", "run.versions.torch", "witnesses.file", "threat_model.epsilon",
]  # fmt: skip


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
@pytest.mark.parametrize("place", TEXTS)
def test_no_text_of_evidence_moves_a_cursor_or_ends_a_line(evidence, place, character, tmp_path):
    doc = copy.deepcopy(evidence.doc)
    put(doc, place, f"3{character}")
    with pytest.raises(EvidenceError) as caught:
        Evidence(doc).validate()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
@pytest.mark.parametrize("place", ["run", "run.fingerprint", "run.versions", "counts.broken_by"])
def test_no_key_of_evidence_does_either(evidence, place, character):
    doc = copy.deepcopy(evidence.doc)
    put(doc, f"{place}.a{character}b", "x")
    with pytest.raises(EvidenceError) as caught:
        Evidence(doc).validate()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("run.fingerprint.processor", "x" * 1001, "at most 1000"),
        ("run.more", ["x", {"y": "x" * 1001}], "at most 1000"),
        ("passes.forward", 10**400, "maximum"),
        ("seed", 2**64, "maximum"),
        ("run.wall_seconds", 1e300, "maximum"),
        ("micro_batch_size", 10**400, "maximum"),
        ("dataset.image_shape", [3, 10**6, 10**6], "numbers an image"),
        ("smaller_epsilons", ["1/0"], "divides by zero"),
        ("smaller_epsilons", ["9" * 999], "epsilon"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_that_no_evaluation_has(evidence, place, value, words):
    doc = copy.deepcopy(evidence.doc)
    put(doc, place, value)
    with pytest.raises(EvidenceError, match=words):
        Evidence(doc).validate()


def test_deep_nesting_is_refused(evidence):
    deep = "x"
    for _ in range(900):
        deep = [deep]
    evidence.doc["run"]["more"] = deep
    with pytest.raises(EvidenceError, match="nested more than"):
        evidence.validate()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other kinds of files")
@pytest.mark.parametrize("kind", ["absent", "pipe", "device", "folder", "large"])
def test_what_is_no_small_file_is_refused_unread(tmp_path, kind):
    path = tmp_path / "e.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(200 * 10**6)
    with pytest.raises(EvidenceError, match=r"(?s)e.json: .*cannot be read.*Next: restore the file"):
        Evidence.load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" + b"[]," * (6 * 10**6) + b"[]]", "values, expected at most"),
        (b'{"a": 1e400}', "too large"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (b"[" * 10**6, "not a JSON document"),
    ],
    ids=["empty lists", "infinity", "twice", "deep"],
)
def test_documents_that_cost_too_much_are_refused(tmp_path, text, words):
    (tmp_path / "e.json").write_bytes(text)
    with pytest.raises(EvidenceError, match=words):
        Evidence.load(tmp_path / "e.json")


ODD = [
    ("id", -1), ("id", True), ("id", 1.0), ("id", 10**13), ("id", "1"), ("label", None), ("predicted", -1),
    ("robust", 1), ("robust", None), ("broken_by", []), ("broken_by", {}), ("more", 1),
    ("micro_batch_size", 0), ("micro_batch_size", True), ("micro_batch_size", "1"),
]  # fmt: skip
ODD_SUCCESSES = [
    ("attack", ""), ("attack", 1), ("attack", "a\n"), ("target", -1), ("target", 1.5), ("restart", None),
    ("iteration", -1), ("iteration", False), ("epsilon", "1\n"), ("epsilon", 1), ("epsilon", None),
    ("epsilon", "x"), ("more", 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "key", "value"), [(None, *o) for o in ODD] + [("broken_by", *o) for o in ODD_SUCCESSES]
)
def test_the_quick_look_at_a_sample_takes_nothing_that_the_schema_refuses(evidence, part, key, value):
    doc = copy.deepcopy(evidence.doc)
    sample = next(s for s in doc["samples"] if s["broken_by"] is not None)
    assert is_plain(sample)
    (sample if part is None else sample[part])[key] = value
    assert not is_plain(sample)
    with pytest.raises(EvidenceError):
        Evidence(doc).validate()


@pytest.mark.parametrize("key", ["id", "label", "predicted", "robust", "broken_by"])
def test_a_sample_without_a_field_is_refused(evidence, key):
    sample = evidence.doc["samples"][1]
    del sample[key]
    assert not is_plain(sample)
    with pytest.raises(EvidenceError, match="required"):
        evidence.validate()


def test_the_schema_is_asked_about_as_much_for_many_images_as_for_few(sections, tmp_path, monkeypatch):
    """Asked about every image, it takes 5 s for 50,000: the whole of a report."""
    asked = []
    check = evidence_rules._check_schema
    monkeypatch.setattr(
        evidence_rules, "_check_schema", lambda value, *rest: (asked.append(value), check(value, *rest))
    )
    sizes = []
    for n in (10, 1000):
        asked.clear()
        evidence = Evidence.build(**sections(n))
        evidence.save(tmp_path / "e.json")
        Evidence.load(tmp_path / "e.json")
        sizes.append([len(json.dumps(value)) for value in asked])
    few, many = sizes
    assert len(few) == len(many) == 3 and max(many) < max(few) + 200
