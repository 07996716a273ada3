"""The Evidence document: its bytes, its schema, and every contradiction it must not pass over."""

from __future__ import annotations

import copy
import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.cards import BrokenBy, Claim, Evidence, EvidenceError, lint_card, render_card
from robustzoo.cards.evidence import EvidenceShard, _canonical
from robustzoo.cards.evidence_rules import schema
from robustzoo.cards.holdings import all_evidence
from robustzoo.registry import recipe as named_recipe

NAME = "vit_micro2.digits_linf.trades_trh"


def test_counts_and_accuracies_follow_from_the_samples(evidence):
    assert evidence.doc["counts"] == {
        "n": 10,
        "clean_correct": 8,
        "robust_correct": 4,
        "broken_by": {"apgd-ce": 2, "apgd-t": 2},
    }
    assert (evidence.clean_accuracy.value, evidence.robust_accuracy.value) == (0.8, 0.4)
    assert evidence.robust_accuracy.low < 0.4 < evidence.robust_accuracy.high
    assert str(evidence.threat_model) == "linf:1/10"
    assert evidence.seed == 0


def test_verdicts(evidence):
    wrong, by_ce, by_t, robust = evidence.verdicts[:4]
    assert (wrong.clean_correct, wrong.robust, wrong.broken_by) == (False, False, None)
    assert by_ce.broken_by == BrokenBy("apgd-ce", None, 0, 4)
    assert (by_t.id, by_t.broken_by.target) == (6, 3)
    assert (robust.clean_correct, robust.robust, robust.predicted) == (True, True, 3)


def test_samples_may_come_in_any_order(sections, evidence):
    shuffled = sections()
    random.Random(0).shuffle(shuffled["samples"])
    assert Evidence.build(**shuffled).doc == evidence.doc


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)


@given(
    st.dictionaries(
        st.text(),
        st.recursive(_SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)),
        max_size=5,
    )
)
def test_bytes_are_those_of_the_standard_encoder(doc):
    expected = json.dumps(doc, sort_keys=True, indent=1, allow_nan=False) + "\n"
    assert _canonical(doc) == expected.encode()


def test_file_round_trip_is_byte_exact_and_leaves_nothing_else(evidence, tmp_path):
    path = tmp_path / "evidence" / "apgd-ce+t.all.json"
    evidence.save(path)
    first = path.read_bytes()
    loaded = Evidence.load(path)
    assert loaded == evidence
    loaded.save(path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_bytes_are_canonical(evidence, tmp_path):
    evidence.doc["model"]["name"] = "Müller's"
    reordered = Evidence(dict(reversed(evidence.doc.items())))
    evidence.save(tmp_path / "a.json")
    reordered.save(tmp_path / "b.json")
    content = (tmp_path / "a.json").read_bytes()
    assert content == (tmp_path / "b.json").read_bytes()
    assert content.isascii() and content.endswith(b"\n}\n")
    assert list(json.loads(content)) == sorted(evidence.doc)


def test_deterministic_bytes_leave_out_the_run_and_nothing_else(evidence):
    other = copy.deepcopy(evidence)
    other.doc["run"]["wall_seconds"] = 99.0
    assert other.deterministic_bytes() == evidence.deterministic_bytes()
    for key in evidence.doc.keys() - {"run"}:
        changed = copy.deepcopy(evidence)
        changed.doc[key] = "other"
        assert changed.deterministic_bytes() != evidence.deterministic_bytes(), key


def test_key_says_which_evaluation_it_is(sections, evidence):
    assert set(evidence.key()) == {
        "schema",
        "model",
        "threat_model",
        "protocol",
        "dataset",
        "seed",
        "micro_batch_size",
        "precision",
    }
    assert Evidence.build(**sections(passes={"forward": 1, "backward": 1})).key() == evidence.key()
    assert Evidence.build(**sections(seed=1)).key() != evidence.key()


def test_the_schema_is_a_schema_and_describes_every_part():
    rules = schema()
    jsonschema.Draft202012Validator.check_schema(rules)
    assert set(rules["properties"]) - set(rules["required"]) == {
        "corruptions",
        "search",
        "smaller_epsilons",
        "shard",
    }
    for name in ("model", "protocol", "dataset", "samples", "counts", "passes", "witnesses", "run"):
        assert rules["properties"][name]["description"]


def _set(*path_and_value):
    *path, key, value = path_and_value

    def change(doc):
        for part in path:
            doc = doc[part]
        doc[key] = value

    return change


def _pop(*path):
    def change(doc):
        for part in path[:-1]:
            doc = doc[part]
        doc.pop(path[-1])

    return change


def _swap(doc):
    doc["samples"][1], doc["samples"][2] = doc["samples"][2], doc["samples"][1]


def _repeat(doc):
    doc["samples"][2] = copy.deepcopy(doc["samples"][1])


APGD = {"attack": "apgd-ce", "target": None, "restart": 0, "iteration": 4}
BAD = [
    # Form.
    (_set("schema", "robustzoo.evidence/9"), "schema", "update robustzoo"),
    (_pop("dataset"), "the top level", "required"),
    (_set("extra", 1), "the top level", "extra"),
    (_set("dataset", "path", "x"), "dataset", "path"),
    (_set("model", "sha256", "C" * 64), "model.sha256", "valid"),
    (_set("model", "name", ""), "model.name", ""),
    (_set("threat_model", "norm", "l7"), "threat_model.norm", "l7"),
    (_set("protocol", "members", []), "protocol.members", ""),
    (_set("dataset", "image_shape", [1, 8]), "dataset.image_shape", ""),
    (_set("model", "name", "a\nb"), "model.name", "printable"),
    (_set("seed", -1), "seed", "minimum"),
    (_set("seed", 0.0), "seed", "integer"),
    (_set("seed", True), "seed", "integer"),
    (_set("micro_batch_size", 0), "micro_batch_size", "minimum"),
    (_set("precision", "bfloat16"), "precision", "float32"),
    (_set("samples", []), "samples", "[]"),
    (_set("samples", 3, "robust", 1), "samples[3].robust", "boolean"),
    (_set("samples", 3, "id", 9.0), "samples[3].id", "integer"),
    (_pop("samples", 1, "broken_by", "restart"), "samples[1].broken_by", "restart"),
    (_set("witnesses", "file", "../../w.safetensors"), "witnesses.file", "match"),
    (_set("run", "wall_seconds", -1), "run.wall_seconds", "minimum"),
    # Facts that contradict each other.
    (_set("threat_model", "epsilon", "0/1"), "threat_model", "greater than 0"),
    (_set("threat_model", "epsilon", "2/20"), "threat_model.epsilon", "1/10"),
    (_set("dataset", "indices", 1, 0), "dataset.indices[1]", "ascend"),
    (_set("dataset", "indices", 9, 28), "samples", "[27, 28]"),
    (_swap, "samples[2]", "ascend"),
    (_repeat, "samples[2]", "repeats"),
    (_set("samples", 3, "label", 10), "samples[3].label", "0..9"),
    (_set("samples", 0, "predicted", 10), "samples[0].predicted", "0..9"),
    (_set("samples", 3, "predicted", 4), "samples[3].robust", "misclassified"),
    (_set("samples", 3, "broken_by", APGD), "samples[3].broken_by", "robust, yet broken"),
    (_set("samples", 1, "broken_by", None), "samples[1].broken_by", "nothing broke it"),
    (_set("samples", 0, "broken_by", APGD), "samples[0].broken_by", "without any attack"),
    (_set("samples", 1, "broken_by", "attack", "square"), "samples[1].broken_by.attack", "no member"),
    (_set("samples", 2, "broken_by", "target", 2), "samples[2].broken_by.target", "another class"),
    (_set("samples", 2, "broken_by", "target", 10), "samples[2].broken_by.target", "another class"),
    (_set("protocol", "name", "aa-standard"), "protocol.digest", "name and members give"),
    (_set("protocol", "members", 0, "iterations", 1), "protocol.digest", "name and members give"),
    (_set("protocol", "digest", "0" * 64), "protocol.digest", "0 stated"),
    (_set("samples", 1, "broken_by", "iteration", 101), "samples[1].broken_by.iteration", "last is 100"),
    (_set("samples", 1, "broken_by", "restart", 1), "samples[1].broken_by.restart", "which has 1"),
    (_set("samples", 1, "broken_by", "target", 3), "samples[1].broken_by.target", "which has none"),
    (_set("samples", 2, "broken_by", "target", None), "samples[2].broken_by.target", "9 targets"),
    (_set("counts", "n", 11), "counts.n", "give 10"),
    (_set("counts", "clean_correct", 9), "counts.clean_correct", "give 8"),
    (_set("counts", "robust_correct", 5), "counts.robust_correct", "give 4"),
    (_set("counts", "broken_by", "apgd-ce", 3), "counts.broken_by", "apgd-ce"),
    (_set("clean_accuracy", "correct", 9), "clean_accuracy.correct", "give 8"),
    (_set("clean_accuracy", "n", 11), "clean_accuracy.n", "give 10"),
    (_set("robust_accuracy", "value", 0.41), "robust_accuracy.value", "give 0.4"),
    (_set("robust_accuracy", "value", float("nan")), "robust_accuracy.value", "nan"),
    (_set("robust_accuracy", "low", 0.2), "robust_accuracy.low", "give 0.1"),
    (_set("robust_accuracy", "high", 0.9), "robust_accuracy.high", "give 0.7"),
    (_set("witnesses", "count", 5), "witnesses.count", "5 witnesses for 4"),
    (_set("search", {"precision": "fp8", "compiled": False}), "search.precision", "fp8"),
    (_set("smaller_epsilons", ["1/20", "1/10"]), "smaller_epsilons[1]", "ascending"),
    (_set("smaller_epsilons", ["1/20", "1/30"]), "smaller_epsilons[0]", "ascending"),
    (_set("samples", 1, "broken_by", "epsilon", "1/20"), "samples[1].broken_by.epsilon", "there are none"),
    (_set("samples", 1, "micro_batch_size", 64), "samples[1].micro_batch_size", "smaller than the run's 64"),
    (
        _set("shard", {"index": 1, "count": 2, "weights": "e" * 64}),
        "samples",
        "not in both: [3, 9, 15, 21, 27]",
    ),
    (_set("shard", {"index": 2, "count": 1, "weights": "e" * 64}), "shard.index", "expected 1..1"),
]


@pytest.mark.parametrize(
    ("change", "path", "words"), BAD, ids=[f"{p}-{i}" for i, (_, p, _) in enumerate(BAD)]
)
def test_each_fault_is_found_where_it_is(evidence, tmp_path, change, path, words):
    change(evidence.doc)
    with pytest.raises(EvidenceError) as caught:
        evidence.save(tmp_path / "e.json")
    assert caught.value.path == path
    assert path in str(caught.value) and words in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": NaN}', b"\xff\xfe\x00", b"<html>404</html>"],
    ids=["empty", "truncated", "nan", "binary", "html"],
)
def test_what_is_not_json_says_so_and_what_to_do(tmp_path, content):
    path = tmp_path / "e.json"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"(?s)e.json: .*not a JSON.*Next: restore .*robustzoo evaluate"):
        Evidence.load(path)


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b"{}"])
def test_json_that_is_no_document(tmp_path, content):
    path = tmp_path / "e.json"
    path.write_bytes(content)
    for validate in (True, False):
        with pytest.raises(EvidenceError, match=r"(?s)e.json: .*Next: restore the file"):
            Evidence.load(path, validate=validate)


def test_another_schema_and_a_malformed_field_name_the_file(evidence, tmp_path):
    path = tmp_path / "e.json"
    evidence.save(path)
    for old, new, words in (
        ("evidence/1", "evidence/9", "at schema.*update robustzoo"),
        ('"n": 10', '"n": 11', "at counts.n"),
    ):
        other = tmp_path / "other.json"
        other.write_text(path.read_text().replace(old, new))
        with pytest.raises(EvidenceError, match=rf"(?s)other.json: .*{words}.*Next: ") as caught:
            Evidence.load(other)
        assert caught.value.file == str(other)
    assert Evidence.load(other, validate=False).doc["counts"]["n"] == 11


@pytest.mark.parametrize("samples", [[], [{}], [{"id": "x"}], [None], 3 * [{"id": 1, "label": 0}]], ids=repr)
def test_build_refuses_malformed_samples(sections, samples):
    with pytest.raises(EvidenceError, match="samples"):
        Evidence.build(**sections(samples=samples))


def test_build_refuses_what_is_not_json(sections):
    broken = sections(seed=np.int64(3))
    with pytest.raises(EvidenceError, match="int64"):
        Evidence.build(**broken)


def test_build_shares_nothing_with_its_caller(sections):
    given = sections()
    built = Evidence.build(**given)
    given["samples"][0]["robust"] = True
    given["model"]["name"] = "other"
    built.validate()
    assert built.doc["model"]["name"] != "other"
    assert built.doc["dataset"]["image_shape"] == [1, 8, 8]


def _shard(sections, index: int, count: int) -> Evidence:
    whole = sections()
    return Evidence.build(
        **{
            **whole,
            "samples": whole["samples"][index - 1 :: count],
            "shard": {"index": index, "count": count, "weights": "e" * 64},
            "witnesses": None,
        }
    )


def test_a_shard_is_no_result(sections, evidence, tmp_path):
    shard = _shard(sections, 2, 3)
    assert isinstance(shard, EvidenceShard) and not isinstance(evidence, EvidenceShard)
    assert [s["id"] for s in shard.doc["samples"]] == [3, 12, 21]
    assert shard.doc["dataset"] == evidence.doc["dataset"] and shard.key() != evidence.key()
    words = "shard 2 of 3, a part of an evaluation and no result; merge .*robustzoo evidence merge"
    with pytest.raises(EvidenceError, match=words):
        Claim.from_evidence(shard)
    (problem,) = lint_card(
        render_card(named_recipe(NAME), evidence, "c" * 64, "apache-2.0"), named_recipe(NAME), shard
    )
    assert "a part of an evaluation" in problem
    with pytest.raises(EvidenceError, match=words):
        render_card(named_recipe(NAME), shard, "c" * 64, "apache-2.0")
    shard.save(tmp_path / "evidence" / "e.json")
    with pytest.raises(EvidenceError, match=f"{words}.*e.json"):
        all_evidence(tmp_path)


def test_what_is_not_the_rule_is_stated_alone(sections, evidence):
    assert not {"search", "smaller_epsilons", "shard"} & set(evidence.doc)
    given = sections(search={"precision": "bf16", "compiled": True}, smaller_epsilons=["1/30", "1/20"])
    given["samples"][1]["broken_by"]["epsilon"] = "1/20"
    given["samples"][2]["micro_batch_size"] = 8
    stated = Evidence.build(**given)
    assert stated.key() != evidence.key() and stated.key()["smaller_epsilons"] == ["1/30", "1/20"]
    assert [v.broken_by.epsilon for v in stated.verdicts if v.broken_by][:2] == ["1/20", None]
