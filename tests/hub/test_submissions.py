"""What is written for other leaderboards: read back by the Hub's client, and equal to the Evidence."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
import yaml
from click.testing import CliRunner
from huggingface_hub import parse_eval_result_entries

from robustzoo.cards.claims import CardError
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence
from robustzoo.cards.statistics import Accuracy
from robustzoo.cli import group
from robustzoo.hub.submissions import eval_results, submission
from robustzoo.registry import entries, recipe

NAME = "vit_micro2.digits_linf.at_base"
REPO = "acme/robust"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(entries.read_lock()[NAME].folder, tmp_path / "model")


@pytest.fixture
def about_cifar(folder):
    """The bundled Evidence as if it were about CIFAR-10: files of the Hub are only about its datasets."""
    (evidence,) = all_evidence(folder)
    doc = {**evidence.doc, "dataset": {**evidence.doc["dataset"], "id": "cifar10"}}
    return Evidence(doc)


def test_eval_results_are_what_the_hub_reads(about_cifar):
    text = eval_results([about_cifar], REPO)
    (found,) = parse_eval_result_entries(yaml.safe_load(text))
    robust, doc = about_cifar.robust_accuracy, about_cifar.doc
    assert (found.dataset_id, found.task_id) == ("uoft-cs/cifar10", "linf-1-10-aa-standard")
    assert abs(found.value - robust.correct / robust.n) < 1e-6
    assert found.date == doc["run"]["started"] and found.source_url == f"https://huggingface.co/{REPO}"
    assert f"{robust.correct} of {robust.n} images robust, 95 % interval {robust.interval}" in found.notes
    assert found.verify_token is None and "verify" not in text
    assert "source" not in eval_results([about_cifar], None)
    assert eval_results([], REPO) is None


def test_the_hub_is_told_nothing_about_a_dataset_that_it_does_not_have(folder):
    assert eval_results(all_evidence(folder), REPO) is None
    with pytest.raises(CardError, match=r"uoft-cs/cifar10.* is about digits"):
        submission(folder, "eval-results")


def test_eval_yaml_names_the_task_of_each_result(about_cifar, monkeypatch, folder):
    monkeypatch.setattr("robustzoo.hub.submissions.all_evidence", lambda folder: [about_cifar])
    files = submission(folder, "eval-results", REPO)
    (results, benchmark) = (yaml.safe_load(text) for text in files.values())
    assert list(files) == [".eval_results/robustzoo.yaml", "uoft-cs--cifar10/eval.yaml"]
    assert results[0]["dataset"]["task_id"] == benchmark["tasks"][0]["id"]
    assert benchmark["tasks"][0] == {"id": "linf-1-10-aa-standard", "config": "plain_text", "split": "test"}


def test_robustbench_and_every_eval_ever_have_the_counts_of_the_evidence(folder, tmp_path):
    (evidence,) = all_evidence(folder)
    robust, clean = evidence.robust_accuracy, evidence.clean_accuracy
    for target in ("robustbench", "every-eval-ever"):
        out = tmp_path / target
        arguments = ["export", str(folder), "--to", target, "--out", str(out), "--repo", REPO]
        done = CliRunner().invoke(group, arguments, catch_exceptions=False)
        assert done.exit_code == 0 and str(out) in done.output
    file = json.loads((tmp_path / "robustbench" / f"{NAME}.linf.json").read_text())
    assert float(file["autoattack_acc"]) == round(100 * robust.value, 2)
    assert float(file["clean_acc"]) == round(100 * clean.value, 2) and file["eps"] == "1/10"
    assert file["dataset"] == "digits" and file["additional_data"] is False and file["authors"] == ""
    record = json.loads((tmp_path / "every-eval-ever" / f"{NAME}.json").read_text())
    scores = {result["evaluation_name"]: result["score_details"] for result in record["evaluation_results"]}
    assert scores["clean"]["score"] == clean.value
    found = scores["linf-1-10-aa-standard"]
    assert found["details"]["correct"] == str(robust.correct) and found["score"] == robust.value
    interval = found["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == (robust.low, robust.high)
    model = record["model_info"]
    assert (model["name"], model["id"]) == (NAME, REPO)
    assert model["additional_details"]["weights_sha256"] == evidence.doc["model"]["sha256"]


def changed(evidence, **more):
    """The same Evidence on fewer images, at another epsilon, of other images or by another protocol."""
    doc = copy.deepcopy(evidence.doc)
    for key, values in more.items():
        doc[key] |= values
    return Evidence(doc)


FEWER = {
    "counts": {"n": 3},
    "dataset": {"subset": "n3-seed0", "digest": "1" * 64},
    "clean_accuracy": Accuracy.of(3, 3).to_json(),
    "robust_accuracy": Accuracy.of(2, 3).to_json(),
}
TWICE = {
    "fewer images": ([FEWER], 2),
    "two epsilons": ([{"threat_model": {"epsilon": "1/20"}}], 1),
    "two datasets": ([{"dataset": {"id": "folder:Mine", "digest": "2" * 64}}], 2),
    "one name but for case": ([{"dataset": {"id": f"folder:{name}"}} for name in ("a b", "A-B", "A_b")], 1),
    "another threat model": ([{"threat_model": {"norm": "l2"}}], 1),
}


@pytest.mark.parametrize("case", TWICE)
def test_two_evaluations_are_two_files_and_two_results(folder, tmp_path, monkeypatch, case):
    (evidence,), (more, clean) = all_evidence(folder), TWICE[case]
    documents = [evidence, *(changed(evidence, **change) for change in more)]
    monkeypatch.setattr("robustzoo.hub.submissions.all_evidence", lambda folder: documents)
    for target in ("robustbench", "every-eval-ever"):
        arguments = ["export", str(folder), "--to", target, "--out", str(tmp_path / target)]
        assert CliRunner().invoke(group, arguments, catch_exceptions=False).exit_code == 0
    files = {path.name.lower(): json.loads(path.read_text()) for path in (tmp_path / "robustbench").iterdir()}
    accuracy = {f"{100 * e.robust_accuracy.value:.2f}" for e in documents}
    assert len(files) == len(documents) and {file["autoattack_acc"] for file in files.values()} == accuracy
    assert {(file["eps"], file["dataset"]) for file in files.values()} == {
        (e.threat_model.epsilon_text, e.doc["dataset"]["id"]) for e in documents
    }
    if case == "another threat model":  # the names of before
        assert {*files} == {f"{NAME}.linf.json", f"{NAME}.l2.json"}
    record = json.loads((tmp_path / "every-eval-ever" / f"{NAME}.json").read_text())
    names = [result["evaluation_name"] for result in record["evaluation_results"]]
    assert len(names) == len({*names}) == len(documents) + clean
    assert len([name for name in names if name.startswith("clean")]) == clean


def test_a_task_of_the_hub_has_one_result_that_on_the_most_test_images(about_cifar, folder, monkeypatch):
    fewer = changed(about_cifar, **FEWER)
    of_training = changed(about_cifar, counts={"n": 50_000}, dataset={"split": "train"})
    other = changed(about_cifar, threat_model={"epsilon": "1/20"})
    monkeypatch.setattr(
        "robustzoo.hub.submissions.all_evidence", lambda _: [fewer, of_training, about_cifar, other]
    )
    files = submission(folder, "eval-results", REPO)
    results, benchmark = (yaml.safe_load(text) for text in files.values())
    found = parse_eval_result_entries(results)
    assert len(found) == 2 == len({(entry.dataset_id, entry.task_id) for entry in found})
    robust = about_cifar.robust_accuracy
    for entry in found:
        assert (
            f"{robust.correct} of {robust.n} images robust" in entry.notes
            and "test, subset all" in entry.notes
        )
    assert {(task["id"], task["split"]) for task in benchmark["tasks"]} == {
        ("linf-1-10-aa-standard", "test"),
        ("linf-1-20-aa-standard", "test"),
    }


def test_generated_images_are_additional_data(about_cifar):
    from robustzoo.hub.submissions import robustbench

    for name, extra in (("vit_l16.cifar10_linf.at_base", True), ("vit_l16.imagenet_linf.at_base", False)):
        assert json.loads(robustbench(recipe(name), about_cifar))["additional_data"] is extra
    of_timm = recipe("resnet18.cifar10_linf.at_base", {"architecture": "timm:convnext_atto"})
    assert json.loads(robustbench(of_timm, about_cifar))["architecture"] == "convnext_atto"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name what to write"),
        (["--to", "robustbench", "--onnx", "x.onnx"], "name what to write"),
        (["--onnx", "x.onnx", "--repo", REPO], "go with --to"),
        (["--to", "elsewhere"], "elsewhere"),
    ],
)
def test_what_is_written_is_named_once(arguments, words):
    done = CliRunner().invoke(group, ["export", NAME, *arguments])
    assert done.exit_code == 2 and words in done.output


def test_robustbench_wants_the_standard_protocol(folder, monkeypatch):
    (evidence,) = all_evidence(folder)
    weaker = Evidence({**evidence.doc, "protocol": {**evidence.doc["protocol"], "name": "pgd-10"}})
    monkeypatch.setattr("robustzoo.hub.submissions.all_evidence", lambda folder: [weaker])
    with pytest.raises(CardError, match="--protocol aa-standard"):
        submission(folder, "robustbench")
