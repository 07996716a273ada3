"""robustzoo report: text, JSON, figure and HTML say what the Evidence says, with and without the images."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

from robustzoo.attacks.protocols import protocol
from robustzoo.cards import Evidence
from robustzoo.cards.signs import masking_signs
from robustzoo.cli import group
from robustzoo.data import load_dataset
from robustzoo.data.sources import TensorSource
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.reports.figure import choose_pictures, png
from robustzoo.reports.html import html
from robustzoo.reports.text import report, stages


@pytest.fixture(scope="module")
def measured(published):
    """The Evidence of `published`, and its file."""
    (path,) = (published / "evidence").glob("*.json")
    return Evidence.load(path), path


def run(*arguments: str):
    return CliRunner().invoke(group, ["report", *map(str, arguments)])


def test_text_and_json_add_up(published, measured):
    evidence, path = measured
    counts = evidence.doc["counts"]
    document = json.loads(run(path, "--json").output)
    assert sum(row["robust"]["correct"] for row in document["classes"]) == counts["robust_correct"]
    assert sum(row["clean"]["correct"] for row in document["classes"]) == counts["clean_correct"]
    assert document["after"]["pgd-5"]["correct"] == counts["robust_correct"]
    assert document["masking"] == []
    text = run(published).output
    assert str(evidence.robust_accuracy) in text and "per class:" in text and "no sign of gradient" in text
    assert run(published).output == run(path).output, "a model means its main evidence"


class Small(nn.Module):
    """A linear classifier of its own shape of images, not square."""

    input_shape = (3, 12, 16)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 12 * 16, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.stack([torch.ones(576), -torch.ones(576)]) / 576)

    def forward(self, x):
        return self.linear(x.flatten(1) - 0.5)


def test_perturbations_of_a_folder_are_drawn_in_the_size_it_was_evaluated_in(tmp_path):
    """A folder whose name is a formula to matplotlib and no text to a terminal."""
    random, folder = np.random.default_rng(0), tmp_path / os.fsdecode(b"im$g_^$s l\xe4t")
    for label, low in (("bright", 128), ("dark", 96)):
        (folder / label).mkdir(parents=True)
        for i in range(3):
            pixels = random.integers(low, low + 32, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    model, out = Small().eval(), tmp_path / "out"
    evaluate(model, folder, "linf:0.2", "pgd-5", out=out, progress=False)
    (path,) = (out / "evidence").glob("*.json")
    files = (tmp_path / "r.html", tmp_path / "r.png")
    command = [sys.executable, "-c", "from robustzoo.cli import main; main()", "report", path]
    done = subprocess.run(
        [*command, "--html", files[0], "--png", files[1], "--data", folder], capture_output=True, text=True
    )
    assert done.returncode == 0 and "other data?" not in done.stderr, done.stderr
    assert all(file.stat().st_size for file in files) and "other data?" not in files[0].read_text()


def test_files_are_whole_deterministic_and_self_contained(measured, tmp_path):
    _, path = measured
    for name in ("one", "two"):
        done = run(path, "--html", tmp_path / f"{name}.html", "--png", tmp_path / f"{name}.png")
        assert done.exit_code == 0, done.output
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    page = (tmp_path / "one.html").read_text()
    assert page == (tmp_path / "two.html").read_text()
    assert page.count("After each attack") == 1 and "robust after it" not in page  # each number once
    assert 'src="data:image/png;base64,' in page
    assert "http" not in page.split("<body>")[1].replace("data:image", "") and "<script" not in page
    image = np.asarray(Image.open(tmp_path / "one.png").convert("L"))
    assert min(image.shape) > 800 and image.std() > 10


def test_pictures_show_the_clean_image_only_where_the_witness_is_near_it(measured):
    evidence, path = measured
    digits = load_dataset("digits", split="test")
    pictures, note = choose_pictures(evidence, path, digits, 4)
    assert note is None and len({p.id for p in pictures}) == 4
    for picture in pictures:
        assert 0 < picture.distance["linf"] <= evidence.threat_model.eps + 1e-6
        assert np.array_equal(picture.clean, digits[picture.id][0].numpy())
    labels = torch.tensor([digits[i][1] for i in range(len(digits))])
    other = TensorSource(torch.zeros(len(digits), 1, 8, 8), labels, num_classes=10)
    strange, note = choose_pictures(evidence, path, other, 4)
    assert all(p.clean is None for p in strange) and "4 witnesses are not within linf:1/40" in note
    assert len(png(evidence, strange)) > 10_000
    alone, note = choose_pictures(evidence, path, None, 3)
    assert len(alone) == 3 and "clean images, digits test, cannot" in note and "--data DIR" in note
    assert alone[0].distance is None


def test_without_witnesses_there_are_no_pictures(folder):
    (path,) = (folder / "evidence").glob("*.json")
    next(path.parent.glob("*.witness.safetensors")).unlink()
    evidence = Evidence.load(path)
    pictures, note = choose_pictures(evidence, path, None, 3)
    assert pictures == [] and "is missing" in note
    assert Image.open(io.BytesIO(png(evidence, pictures))).width > 800


def test_nothing_broken_and_odd_names_are_shown(measured):
    evidence, _ = measured
    doc = json.loads(json.dumps(evidence.doc))
    samples = [{**s, "robust": s["predicted"] == s["label"], "broken_by": None} for s in doc["samples"]]
    sections = ("protocol", "dataset", "seed", "micro_batch_size", "passes", "run")
    unbroken = Evidence.build(
        model={"name": "<b>a & b</b>", "sha256": None},
        threat_model=evidence.threat_model,
        samples=samples,
        **{name: doc[name] for name in sections},
    )
    page = html(unbroken, png(unbroken, []), ["a <note>"])
    assert "<b>a" not in page and "&lt;b&gt;a &amp; b" in page and "a &lt;note&gt;" in page
    assert [a.correct for _, a in stages(unbroken)] == [doc["counts"]["clean_correct"]] * 2


def changed(evidence: Evidence, **sections) -> Evidence:
    return Evidence({**json.loads(json.dumps(evidence.doc)), **sections})


def test_signs_of_masking_are_named(measured):
    evidence, _ = measured
    assert masking_signs(evidence) == []
    counts = {**evidence.doc["counts"], "broken_by": {"apgd-ce": 30, "square": 1}}
    both = {**evidence.doc["protocol"], "members": [{"attack": "apgd-ce"}, {"attack": "square"}]}
    (sign,) = masking_signs(changed(evidence, counts=counts, protocol=both))
    assert "Square, which uses no gradient, broke 1 of 100 images" in sign
    alone = {**both, "members": [{"attack": "square"}]}
    assert masking_signs(changed(evidence, counts=counts, protocol=alone)) == []
    blind = changed(evidence, run={**evidence.doc["run"], "zero_gradients": {"pgd-5": 20}})
    assert "every gradient was zero for pgd-5 on 20" in masking_signs(blind)[0]
    fewer = {**evidence.doc["counts"], "clean_correct": evidence.doc["counts"]["clean_correct"] - 1}
    (sign,) = masking_signs(evidence, [evidence, changed(evidence, counts=fewer)])
    assert "the clean accuracy changes between evaluations" in sign
    assert f"flag: {sign}" in report(evidence, others=[changed(evidence, counts=fewer)])


def test_bad_input(tmp_path, measured):
    _, path = measured
    assert "cannot be read" in run(tmp_path / "absent.json").exception.args[0]
    done = run(path, "--png", tmp_path / "x.png", "--data", tmp_path / "nowhere", "--json")
    assert done.exit_code == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("option", "name"), [("--png", "x.jpg"), ("--png", "x"), ("--html", "x.png")])
def test_a_file_named_as_what_it_will_not_hold_is_refused(tmp_path, measured, option, name):
    done = run(measured[1], option, tmp_path / name)
    assert done.exit_code == 2 and f"{name}: expected a name that ends in" in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


def test_a_folder_of_several_reports_the_main_one_and_the_best_known(folder, measured):
    """A second Evidence in which one image that the first left robust is broken, and the reverse."""
    evidence, path = measured
    samples = json.loads(json.dumps(evidence.doc["samples"]))
    robust = next(s for s in samples if s["robust"])
    broken = next(s for s in samples if s["broken_by"] is not None)
    robust["broken_by"], broken["broken_by"] = {**broken["broken_by"], "target": None}, None
    robust["robust"], broken["robust"] = False, True
    for sample in samples:
        if sample["broken_by"] is not None:
            sample["broken_by"].update(attack="square", target=None)
    doc = evidence.doc
    other = Evidence.build(
        threat_model=evidence.threat_model,
        samples=samples,
        protocol=protocol("square", evidence.threat_model, 10).to_json(),
        **{key: doc[key] for key in ("model", "dataset", "seed", "micro_batch_size", "passes", "run")},
    )
    other.save(folder / "evidence" / "square.json")
    done = run(folder)
    assert done.exit_code == 0, done.output
    left = evidence.robust_accuracy.correct - 1
    assert f"({left} / 100" in done.stdout and "leave together" in done.stdout
    assert "protocol pgd-5" in done.stdout and "others: square.json" in done.stderr
    assert "best known" not in run(path).stdout


def test_many_classes_are_summed_up_by_the_weakest(measured):
    evidence, _ = measured
    doc = json.loads(json.dumps(evidence.doc))
    for sample in doc["samples"]:
        right = sample["predicted"] == sample["label"]
        sample["label"] = sample["id"] % 30
        sample["predicted"] = sample["label"] if right else (sample["label"] + 1) % 30
        if sample["broken_by"] is not None:
            sample["broken_by"]["target"] = None
    many = Evidence.build(
        threat_model=evidence.threat_model,
        samples=doc["samples"],
        dataset={**doc["dataset"], "num_classes": 30},
        **{key: doc[key] for key in ("model", "protocol", "seed", "micro_batch_size", "passes", "run")},
    )
    lines = report(many, details=True).splitlines()
    labels = {s["label"] for s in doc["samples"]}
    title = next(i for i, line in enumerate(lines) if line.startswith("the 8 least robust"))
    assert f"of {len(labels)} classes" in lines[title] and lines[title + 9] == ""
    assert len(png(many, [])) > 10_000
