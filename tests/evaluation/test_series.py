"""Curves over epsilon and tables over threat models."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from robustzoo.cards import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import load_dataset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.series import (
    CrossNorm,
    Curve,
    evaluate_curve,
    evaluate_on_rank,
    evaluate_threat_models,
    folder_of,
)
from robustzoo.evaluation.shards import Rank, merge
from robustzoo.evaluation.witnessing import inside, margins, require_same_answers
from robustzoo.registry import ThreatModel

OPTIONS = {"n": 24, "micro_batch_size": 6, "progress": False}
EPSILONS = ("1/10", "1/40", "1/20")


@pytest.fixture(scope="module")
def curve(linear):
    return evaluate_curve(linear, "digits", EPSILONS, "linf:1/10", "pgd-5", **OPTIONS)


def test_epsilons_ascend_and_accuracy_falls(curve):
    assert [p.threat_model.epsilon_text for p in curve.points] == ["1/40", "1/20", "1/10"]
    robust = [p.robust_accuracy.correct for p in curve.points]
    assert robust == sorted(robust, reverse=True) and robust[-1] < robust[0]
    assert len({p.clean_accuracy for p in curve.points}) == 1


def test_what_fools_at_a_smaller_epsilon_is_not_attacked_again(curve, linear):
    first, second, third = curve.points
    assert "smaller_epsilons" not in first.doc and third.doc["smaller_epsilons"] == ["1/40", "1/20"]
    broken = {v.id: v for v in first.verdicts if v.broken_by}
    for point in (second, third):
        for verdict in point.verdicts:
            if verdict.id in broken:
                assert verdict.broken_by.epsilon == "1/40"
                assert verdict.broken_by.iteration == broken[verdict.id].broken_by.iteration
    # The same without carrying: as strict, but for what only the smaller search found.
    alone = evaluate(linear, "digits", "linf:1/10", "pgd-5", **OPTIONS)
    assert alone.robust_accuracy.correct >= third.robust_accuracy.correct
    assert third.doc["passes"]["backward"] < alone.doc["passes"]["backward"]


def test_every_point_has_witnesses_of_its_own_ball(curve, linear):
    data = load_dataset("digits")
    for point in curve.points:
        broken = [v for v in point.verdicts if v.broken_by]
        witnesses = point.witness_set
        assert witnesses.ids.tolist() == [v.id for v in broken]
        points = torch.from_numpy(witnesses.pixels)
        clean = torch.stack([data[v.id][0] for v in broken])
        assert inside(points, clean, point.threat_model).all()
        assert (margins(linear, points, [v.label for v in broken], 5, torch.device("cpu")) > 0).all()


def test_files_of_a_curve_are_kept_and_used_again(linear, curve, tmp_path, monkeypatch):
    found = evaluate_curve(linear, "digits", EPSILONS, "linf:1/10", "pgd-5", out=tmp_path, **OPTIONS)
    for here, there in zip(found.points, curve.points, strict=True):
        assert here.doc["samples"] == there.doc["samples"]
    assert json.loads((tmp_path / "curve-linf.json").read_text()) == found.to_json() == curve.to_json()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "curve-linf.json",
        "linf-1_10",
        "linf-1_20",
        "linf-1_40",
    ]
    for path in tmp_path.glob("*/evidence/*.json"):
        assert Evidence.load(path).deterministic_bytes()
    monkeypatch.setattr("robustzoo.evaluation.evaluate.attack_all", lambda *_: pytest.fail("attacked again"))
    again = evaluate_curve(linear, "digits", EPSILONS, "linf:1/10", "pgd-5", out=tmp_path, **OPTIONS)
    assert [p.doc for p in again.points] == [p.doc for p in found.points]


class Flipping(nn.Module):
    """A classifier whose code changes without its weights: the logits in reverse, or as they were."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.flipped = network, False

    def forward(self, x):
        logits = self.network(x)
        return logits.flip(1) if self.flipped else logits


def test_points_of_other_weights_or_other_code_are_not_used_again(linear, tmp_path):
    model = Flipping(copy.deepcopy(linear)).eval()
    arguments = (model, "digits", EPSILONS[:2], "linf:1/10", "pgd-5")
    first = evaluate_curve(*arguments, out=tmp_path, **OPTIONS)
    model.flipped = True
    with pytest.raises(RobustzooError, match="otherwise than this one, whose weights are the same"):
        evaluate_curve(*arguments, out=tmp_path, **OPTIONS)
    with pytest.raises(RobustzooError, match="otherwise than this one"):
        evaluate(model, "digits", "linf:1/10", "pgd-5", smaller=first.points[0], **OPTIONS)
    again = evaluate_curve(*arguments, out=tmp_path, restart=True, **OPTIONS)
    assert again.points[0].clean_accuracy.correct < first.points[0].clean_accuracy.correct
    fresh = evaluate_curve(*arguments, **OPTIONS)
    assert [p.doc["samples"] for p in again.points] == [p.doc["samples"] for p in fresh.points]
    with torch.no_grad():
        model.network[1].weight.add_(0.1 * torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
    for options in ({}, {"restart": True}):
        with pytest.raises(RobustzooError, match="model differs in weights"):
            evaluate_curve(*arguments, out=tmp_path, **OPTIONS, **options)
    with pytest.raises(RobustzooError, match="differs from this one in its model"):
        evaluate(model, "digits", "linf:1/10", "pgd-5", smaller=first.points[0], **OPTIONS)
    with pytest.raises(RobustzooError, match=r"smaller is 3 .*; expected an Evidence"):
        evaluate(model, "digits", "linf:1/10", "pgd-5", smaller=3, **OPTIONS)


def test_a_witness_that_fools_no_longer_is_found_out(linear, tmp_path):
    found = evaluate(linear, "digits", "linf:1/10", "pgd-5", **OPTIONS)
    data, device = load_dataset("digits"), torch.device("cpu")
    require_same_answers(found, linear, data, device)
    clean = torch.stack([data[int(i)][0] for i in found.witness_set.ids])
    found.witness_set = Witnesses(found.witness_set.ids, clean.numpy(), found.witness_set.margins)
    with pytest.raises(RobustzooError, match="answers the stored witness of image"):
        require_same_answers(found, linear, data, device)


def test_shards_of_a_curve_are_merged_point_by_point(linear, curve, tmp_path):
    arguments = (linear, "digits", EPSILONS, "linf:1/10", "pgd-5")
    for shard in ("2/2", "1/2"):
        part = evaluate_curve(*arguments, out=tmp_path / "parts", shard=shard, **OPTIONS)
        assert part.text().startswith(f"PART OF A RESULT: this is shard {shard[0]} of 2")
    with pytest.raises(RobustzooError, match=r"shard 2 of 2 is missing") as raised:
        merge([tmp_path / "parts" / "linf-1_40" / "shard-1-of-2"], tmp_path / "no")
    assert "other evaluations" not in str(raised.value)
    aside = (tmp_path / "parts" / "linf-1_20" / "shard-1-of-2").rename(tmp_path / "aside")
    with pytest.raises(RobustzooError, match=r"shard 1 of 2 is missing") as raised:
        merge([tmp_path / "parts"], tmp_path / "no")
    assert "other evaluations" not in str(raised.value)  # other points are none
    aside.rename(tmp_path / "parts" / "linf-1_20" / "shard-1-of-2")
    written = merge([tmp_path / "parts"], tmp_path / "whole")
    assert [path.parts[-3] for path in written] == ["linf-1_40", "linf-1_20", "linf-1_10"]
    whole = evaluate_curve(*arguments, out=tmp_path / "whole", **OPTIONS)
    assert [p.doc["samples"] for p in whole.points] == [p.doc["samples"] for p in curve.points]
    assert json.loads((tmp_path / "whole" / "curve-linf.json").read_text()) == curve.to_json()
    assert not whole.text().startswith("PART")


def test_a_long_first_column_keeps_its_distance(curve):
    long = {"norm": "linf", "epsilon": "0.33333333333333"}
    point = Evidence({**curve.points[0].doc, "threat_model": long})
    for table, name in (
        (Curve((point,)), point.threat_model.epsilon_text),
        (CrossNorm((point,)), str(point.threat_model)),
    ):
        lines = table.text().splitlines()
        assert lines[1].index("accuracy") == len(name) + 2
        assert lines[3] == f"{name}  {point.robust_accuracy}"


def test_the_table_of_a_curve_names_every_epsilon(curve):
    lines = curve.text().splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1/40", "1/20", "1/10"]
    assert str(curve.points[0].robust_accuracy) in lines[3]


def test_the_micro_batch_of_a_curve_is_that_of_its_first_point(linear, tmp_path, monkeypatch):
    sizes = iter([8, 4, 2, 2])
    monkeypatch.setattr("robustzoo.evaluation.micro_batch.find_micro_batch", lambda *_, **__: next(sizes))
    options = {"n": 10, "progress": False, "out": tmp_path}
    for _ in range(2):  # also where it is finished already
        found = evaluate_curve(linear, "digits", EPSILONS, "linf:1/10", "pgd-2", **options)
        assert [point.doc["micro_batch_size"] for point in found.points] == [8, 8, 8]


@pytest.mark.parametrize(
    ("epsilons", "words"), [((), "empty"), (("1/10", "0.1"), "each once"), (("1/10", ""), "one comma")]
)
def test_epsilons_that_make_no_curve_are_refused(linear, epsilons, words):
    with pytest.raises(RobustzooError, match=words):
        evaluate_curve(linear, "digits", epsilons, "linf:1/10", "pgd-5", **OPTIONS)


def test_only_the_same_evaluation_may_be_carried_over(linear, curve):
    first = curve.points[0]
    for options, words in (
        ({"threat_model": "l2:1"}, "the smaller threat model is linf:1/40; expected l2 below l2:1"),
        ({"threat_model": "linf:1/40"}, "expected linf below"),
        ({"protocol": "pgd-6"}, "differs from this one in its protocol"),
        ({"seed": 1}, "in its seed"),
    ):
        arguments = {"threat_model": "linf:1/10", "protocol": "pgd-5", **OPTIONS, **options}
        with pytest.raises(RobustzooError, match=words):
            evaluate(linear, "digits", smaller=first, **arguments)


def test_ranks_make_a_curve_too(linear, curve, tmp_path):
    found = [
        evaluate_curve(
            linear, "digits", EPSILONS, "linf:1/10", "pgd-5", out=tmp_path, rank=Rank(i, 2, i), **OPTIONS
        )
        for i in (1, 0)
    ]
    assert found[0] is None
    for here, there in zip(found[1].points, curve.points, strict=True):
        assert here.deterministic_bytes() != b"" and here.doc["samples"] == there.doc["samples"]


def test_ranks_need_a_common_folder_and_no_shards(linear):
    with pytest.raises(RobustzooError, match="2 ranks would each keep a part"):
        evaluate_on_rank(Rank(0, 2, 0), linear, "digits", "linf:1/10", "pgd-5", **OPTIONS)
    with pytest.raises(RobustzooError, match="a shard and ranks"):
        evaluate_on_rank(Rank(0, 2, 0), linear, "digits", "linf:1/10", "pgd-5", out="x", shard="1/2")


def test_one_model_under_several_threat_models(linear, tmp_path):
    threats = ("linf:1/20", "l2:1/2")
    table = evaluate_threat_models(linear, "digits", threats, "pgd-5", out=tmp_path, **OPTIONS)
    alone = [evaluate(linear, "digits", threat, "pgd-5", **OPTIONS) for threat in threats]
    assert [one.doc["samples"] for one in table.evidence] == [one.doc["samples"] for one in alone]
    both = [{v.id for v in one.verdicts if v.robust} for one in alone]
    assert table.union.correct == len(both[0] & both[1]) <= min(map(len, both))
    document = json.loads((tmp_path / "cross-norm.json").read_text())
    assert document == table.to_json() and list(document["robust_accuracy"]) == sorted(threats)
    assert "all of them" in table.text() and all(threat in table.text() for threat in threats)
    with pytest.raises(RobustzooError, match="each once"):
        evaluate_threat_models(linear, "digits", ("linf:1/10", "linf:0.1"), "pgd-5", **OPTIONS)


def test_folders_are_named_by_norm_and_epsilon(tmp_path):
    assert folder_of(ThreatModel.parse("l2:0.5"), tmp_path).name == "l2-1_2"
