"""evaluate(): right where the answer is known, and the same whatever the order, grouping or processes."""

from __future__ import annotations

import copy
import hashlib
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import robustzoo
from robustzoo.attacks.protocols import protocol
from robustzoo.cards import Claim, Evidence, Witnesses, lint_card, render_card
from robustzoo.data import DataError, load_dataset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import EvaluationWarning
from robustzoo.evaluation.engine import passes_at_most
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.prepare import state_digest, weights_hash
from robustzoo.evaluation.witnessing import inside, margins
from robustzoo.models.folder import read_folder
from robustzoo.registry import ThreatModel, find_entry
from robustzoo.reports.text import report
from robustzoo.verification.verify import verify

EPS = "linf:1/20"


@pytest.fixture(scope="module")
def evidence(linear):
    return evaluate(linear, "digits", EPS, "pgd-10", n=120, micro_batch_size=16, progress=False)


def two_class_problem(n: int, norm: str, eps: float):
    """A linear model, images that the box never touches, and for each whether it is robust in closed form."""
    generator = torch.Generator().manual_seed(3)
    x = 0.3 + 0.4 * torch.rand(n, 1, 4, 4, generator=generator)
    weight = torch.randn(2, 16, generator=generator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.copy_(-weight @ torch.full((16,), 0.5))
    difference = weight[1] - weight[0]
    score = (x.flatten(1).double() - 0.5) @ difference.double()
    y = (score > 0).long()
    # Every fifth label is wrong: misclassified without any attack.
    y[::5] = 1 - y[::5]
    reach = eps * (difference.abs().sum() if norm == "linf" else difference.norm())
    return model, x, y, score.abs() / reach


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_model_gets_its_exact_verdicts(norm):
    eps = 0.05 if norm == "linf" else 0.2
    model, x, y, ratio = two_class_problem(60, norm, eps)
    found = evaluate(model, (x, y), f"{norm}:{eps}", "apgd-ce", progress=False)
    assert found.clean_accuracy.correct == 48
    for verdict in found.verdicts:
        correct = verdict.id % 5 != 0
        assert verdict.clean_correct == correct
        assert verdict.label == int(y[verdict.id])
        if not 0.98 < ratio[verdict.id] < 1.02:
            assert verdict.robust == (correct and bool(ratio[verdict.id] > 1))
    assert 0 < found.robust_accuracy.correct < 48


def test_order_and_grouping_leave_no_trace(linear, evidence):
    ids = [verdict.id for verdict in evidence.verdicts]
    options = {"micro_batch_size": 16, "progress": False}
    shuffled = np.random.default_rng(0).permutation(ids).tolist()
    first = evaluate(linear, "digits", EPS, "pgd-10", indices=ids, **options)
    second = evaluate(linear, "digits", EPS, "pgd-10", indices=shuffled, **options)
    assert first.deterministic_bytes() == second.deterministic_bytes()
    assert first.doc["samples"] == evidence.doc["samples"]
    part = evaluate(linear, "digits", EPS, "pgd-10", indices=shuffled[:37], **options)
    kept = set(shuffled[:37])
    assert part.doc["samples"] == [s for s in evidence.doc["samples"] if s["id"] in kept]
    rows = [i for i, at in enumerate(evidence.witness_set.ids) if at in kept]
    assert np.array_equal(part.witness_set.pixels, evidence.witness_set.pixels[rows])
    assert np.array_equal(part.witness_set.margins, evidence.witness_set.margins[rows])


@pytest.mark.parametrize("size", [1, 7, 500])
def test_other_batch_shapes_change_next_to_nothing(linear, evidence, size):
    other = evaluate(linear, "digits", EPS, "pgd-10", n=120, micro_batch_size=size, progress=False)
    assert other.doc["micro_batch_size"] == size
    pairs = zip(evidence.verdicts, other.verdicts, strict=True)
    assert sum(a.robust != b.robust for a, b in pairs) <= 1


def test_the_seed_matters_and_is_recorded(linear, evidence):
    again = evaluate(linear, "digits", EPS, "pgd-10", n=120, micro_batch_size=16, progress=False)
    other = evaluate(linear, "digits", EPS, "pgd-10", n=120, micro_batch_size=16, seed=1, progress=False)
    assert again.deterministic_bytes() == evidence.deterministic_bytes()
    assert other.seed == 1
    assert not np.array_equal(other.witness_set.pixels[:5], evidence.witness_set.pixels[:5])


def assert_workers_leave_no_trace(model):
    one, two = (
        evaluate(model, "digits", EPS, "pgd-10", n=30, micro_batch_size=8, workers=workers, progress=False)
        for workers in (1, 2)
    )
    assert one.deterministic_bytes() == two.deterministic_bytes()
    assert np.array_equal(one.witness_set.pixels, two.witness_set.pixels)
    assert (one.doc["run"]["workers"], two.doc["run"]["workers"]) == (1, 2)


def test_two_processes_give_the_bytes_of_one(linear):
    assert_workers_leave_no_trace(linear)


@pytest.mark.slow
def test_two_processes_that_read_a_folder_give_the_bytes_of_one(published):
    assert_workers_leave_no_trace(read_folder(published))


def test_every_broken_image_has_a_witness_that_fools(linear, evidence):
    data, witnesses = load_dataset("digits"), evidence.witness_set
    broken = [v for v in evidence.verdicts if v.clean_correct and not v.robust]
    assert witnesses.ids.tolist() == [v.id for v in broken] and len(broken) > 10
    points = torch.from_numpy(witnesses.pixels)
    clean = torch.stack([data[v.id][0] for v in broken])
    assert inside(points, clean, ThreatModel.parse(EPS)).all()
    found = margins(linear, points, [v.label for v in broken], 5, torch.device("cpu"))
    assert (found > 0).all()
    assert torch.allclose(found, torch.from_numpy(witnesses.margins), atol=1e-4)
    assert witnesses.quantised.mean() > 0.5


def test_counts_of_passes_stay_within_the_announced_cost(linear):
    events = []
    found = evaluate(linear, "digits", EPS, "apgd-ce+t", n=10, micro_batch_size=10, progress=events.append)
    cost = next(e["text"] for e in events if e["event"] == "cost")
    assert "apgd-ce+t on 10 images: at most 10,120 forwards and 10,000 backwards" in cost
    assert found.doc["passes"]["forward"] <= 10_120 and found.doc["passes"]["backward"] <= 10_000
    assert {e["stage"] for e in events if e["event"] == "progress"} >= {"clean", "apgd-ce"}


def test_the_announced_cost_of_aa_standard_covers_the_reference(linear):
    forwards, backwards = passes_at_most(protocol("aa-standard", ThreatModel.parse(EPS), 10))
    assert (forwards, backwards) == (1 + 101 + 909 + 1800 + 5001 + 1, 1900)


def test_the_announced_cost_covers_images_that_break_at_the_last_point(linear):
    events = []
    found = evaluate(linear, "digits", "linf:0.9", "pgd-1", n=5, progress=events.append)
    assert found.robust_accuracy.correct == 0
    forwards, _ = passes_at_most(protocol("pgd-1", ThreatModel.parse(EPS), 10))
    assert found.doc["passes"]["forward"] <= 5 * forwards
    assert any(f"at most {5 * forwards} forwards" in e.get("text", "") for e in events)


def test_files_are_written_together_and_read_back(linear, tmp_path):
    found = evaluate(linear, "digits", EPS, "pgd-10", n=40, out=tmp_path, name="mine", progress=False)
    stem = "pgd-10.digits-test-n40-seed0"
    files = sorted(path.name for path in (tmp_path / "evidence").iterdir())
    assert files == [f"{stem}.json", f"{stem}.witness.safetensors"]
    stored = Evidence.load(tmp_path / "evidence" / files[0])
    assert stored.doc == found.doc
    assert stored.doc["model"] == {"name": "mine", "sha256": None, "weights": state_digest(linear)}
    content = (tmp_path / "evidence" / files[1]).read_bytes()
    assert stored.doc["witnesses"] == {
        "file": files[1],
        "sha256": hashlib.sha256(content).hexdigest(),
        "count": found.clean_accuracy.correct - found.robust_accuracy.correct,
    }
    witnesses = Witnesses.load(tmp_path / "evidence" / files[1])
    assert np.array_equal(witnesses.pixels, found.witness_set.pixels)


def test_data_may_be_tensors_a_dataset_or_a_folder(linear, evidence, tmp_path):
    data = load_dataset("digits")
    ids = [verdict.id for verdict in evidence.verdicts][:12]
    x = torch.stack([data[i][0] for i in ids])
    y = torch.tensor([data[i][1] for i in ids])
    options = {"threat_model": EPS, "protocol": "pgd-2", "micro_batch_size": 4, "progress": False}
    first, second = (evaluate(linear, form, **options) for form in ((x, y), TensorDataset(x, y)))
    assert first.doc["samples"] == second.doc["samples"]
    assert first.doc["dataset"]["digest"] == second.doc["dataset"]["digest"]
    assert first.doc["dataset"]["indices"] == list(range(12))

    for label in (0, 1):
        (tmp_path / f"class{label}").mkdir()
        for i in range(3):
            Image.fromarray(np.full((16, 16, 3), 60 + 120 * label + i, np.uint8)).save(
                tmp_path / f"class{label}" / f"{i}.png"
            )
    bright = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        bright[2].weight.copy_(torch.tensor([[-1.0] * 3, [1.0] * 3]))
        bright[2].bias.copy_(torch.tensor([1.5, -1.5]))
    found = evaluate(bright, tmp_path, "linf:8/255", "pgd-2", progress=False)
    assert found.clean_accuracy.correct == found.robust_accuracy.correct == 6


def test_a_folder_is_evaluated_though_the_models_own_dataset_has_no_files(published, tmp_path, monkeypatch):
    model, digits = read_folder(published), load_dataset("digits")
    for i in range(40):
        x, label = digits[i]
        (tmp_path / "digits" / str(label)).mkdir(parents=True, exist_ok=True)
        pixels = (x[0] * 255).round().to(torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "digits" / str(label) / f"{i}.png")
    options = {"protocol": "pgd-1", "name": "mine", "progress": False}
    expected = evaluate(model, digits, indices=range(40), **options)
    for folder in (tmp_path / "digits", str(tmp_path / "digits")):
        found = evaluate(model, folder, **options)
        assert found.doc["counts"]["n"] == 40 and found.doc["dataset"]["image_shape"] == [1, 8, 8]
        assert abs(found.clean_accuracy.correct - expected.clean_accuracy.correct) <= 1  # 8-bit pixels
    monkeypatch.chdir(tmp_path)  # a name of the catalog stays one, whatever lies beside it
    assert evaluate(model, "digits", n=3, **options).doc["dataset"]["split"] == "test"
    with pytest.raises(DataError, match="digits come with scikit-learn and need no data folder"):
        evaluate(model, "digits", data_root=tmp_path, **options)


def test_weights_changed_in_memory_are_not_called_by_the_files_hash(published):
    model = read_folder(published)
    assert weights_hash(model) is not None
    with torch.no_grad():
        model.head.bias[0] += 1
    assert weights_hash(model) is None
    found = evaluate(model, "digits", EPS, "pgd-2", n=5, progress=False)
    assert found.doc["model"]["sha256"] is None and "changed" in found.doc["model"]["name"]


def test_weights_that_are_not_the_published_ones_never_carry_the_registry_name_alone(published):
    model = read_folder(published)
    sha256, locked = weights_hash(model), find_entry(model.name).weights.sha256
    with pytest.warns(EvaluationWarning, match=f"{sha256}.*{locked}.*robustzoo.load") as caught:
        found = evaluate(model, "digits", None, "pgd-2", n=5, progress=False)
    assert caught[0].filename == __file__
    assert found.doc["model"] == {"name": f"{model.name} (weights {sha256[:12]})", "sha256": sha256}
    assert find_entry(found.doc["model"]["name"]) is None
    # A card of the folder is still about its recipe, and its owner may call it something else.
    text = render_card(model.recipe, found, sha256, "apache-2.0")
    assert lint_card(text, model.recipe, found) == [] and Claim.from_card(text)[0].model_name == model.name
    assert evaluate(model, "digits", EPS, "pgd-2", n=5, name="mine", progress=False).doc["model"] == {
        "name": "mine",
        "sha256": sha256,
    }


def test_a_flipped_byte_makes_another_model(tmp_path):
    item = find_entry("vit_micro2.digits_linf.at_base")
    folder = shutil.copytree(item.weights.folder, tmp_path / "model")
    true = evaluate(read_folder(folder), "digits", None, "pgd-1", n=2, progress=False)
    assert true.doc["model"] == {"name": item.name, "sha256": item.weights.sha256}
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-4] ^= 1  # the lowest bit of the last number
    (folder / "model.safetensors").write_bytes(content)
    with pytest.warns(EvaluationWarning, match="does not hold the published weights"):
        found = evaluate(read_folder(folder), "digits", None, "pgd-1", n=2, progress=False)
    assert found.doc["model"]["name"].startswith(f"{item.name} (weights ")
    with pytest.raises(RobustzooError, match="Next: put the published file back"):
        verify(folder, progress=False)


def test_all_broken_none_correct_and_one_image(linear):
    x, y = load_dataset("digits")[0]
    assert evaluate(linear, (x[None], torch.tensor([y])), "linf:1", "pgd-10", progress=False).doc[
        "counts"
    ] == {
        "n": 1,
        "clean_correct": 1,
        "robust_correct": 0,
        "broken_by": {"pgd-10": 1},
    }
    wrong = evaluate(linear, (x[None], torch.tensor([(y + 1) % 10])), EPS, "pgd-10", progress=False)
    assert wrong.doc["counts"]["clean_correct"] == 0 and len(wrong.witness_set) == 0


def test_the_report_names_every_number(evidence):
    text = report(evidence)
    counts = evidence.doc["counts"]
    for part in (EPS, "pgd-10", "digits", f"{counts['robust_correct']} / 120", "micro-batch 16", "seed 0"):
        assert part in text
    assert "upper bound" in text


def test_square_finding_what_gradients_missed_is_flagged(evidence):
    doc = copy.deepcopy(evidence.doc)
    doc["protocol"] = protocol("aa-standard", ThreatModel.parse(EPS), 10).to_json()
    doc["counts"]["broken_by"] = {"apgd-ce": 30, "square": 3}
    assert "gradients may be masked" in report(Evidence(doc))
    doc["counts"]["broken_by"] = {"apgd-ce": 33}
    assert "masked" not in report(Evidence(doc))


def test_points_fool_the_model_within_the_ball_and_agree_with_the_evaluation(linear):
    x = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = linear(x).argmax(1)
    y[0] = (y[0] + 1) % 10  # wrong before any attack
    images, succeeded = robustzoo.attack(linear, x, y, "linf:1/40", "apgd-ce")
    evidence = robustzoo.evaluate(linear, (x, y), "linf:1/40", "apgd-ce", progress=False)
    assert 1 < succeeded.sum() < 30 and float(evidence) == int((~succeeded).sum()) / 30
    assert (images - x).abs().max() <= 1 / 40 + 1e-6 and images.min() >= 0 and images.max() <= 1
    with torch.no_grad():
        assert torch.equal(linear(images).argmax(1) != y, succeeded)
    assert torch.equal(images[0], x[0]) and succeeded[0] and torch.equal(images[~succeeded], x[~succeeded])
    # one line each, and the numbers themselves
    assert len(str(evidence).splitlines()) == 1 and str(evidence) == repr(evidence)
    assert float(evidence.clean_accuracy) == evidence.clean_accuracy.value == 29 / 30
    assert "robust accuracy" in robustzoo.report(evidence)
    assert robustzoo.compare([evidence], [Evidence(evidence.doc)])
