"""Common corruptions: counted right from published files, in Evidence, card, report and comparison."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import robustzoo
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cli import group
from robustzoo.data import DataError, MissingData, load_dataset, open_data
from robustzoo.data.readers.corrupted import open_corrupted
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.corruptions import evaluate_corruptions
from robustzoo.registry import ThreatModel
from robustzoo.registry.threat_model import CORRUPTION_NAMES

NAMES = ("vit_micro2.digits_linf.at_base", "vit_micro2.digits_linf.at_trh")


def run(*arguments) -> str:
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


@pytest.fixture(scope="module")
def digits_c(tmp_path_factory):
    """Arrays in the layout of CIFAR-10-C: noise that grows with the severity."""
    folder, images = tmp_path_factory.mktemp("digits-c"), load_dataset("digits")
    clean = np.stack([images[i][0].numpy() for i in range(len(images))]).transpose(0, 2, 3, 1)
    noise = np.random.default_rng(0)
    for name in CORRUPTION_NAMES:
        noisy = [clean + noise.normal(0, 0.08 * s, clean.shape) for s in range(1, 6)]
        np.save(folder / f"{name}.npy", (255 * np.concatenate(noisy).clip(0, 1)).astype(np.uint8))
    np.save(folder / "labels.npy", np.tile(images.labels, 5).astype(np.uint8))
    return folder


def test_counts_are_those_of_a_loop_by_hand(digits_c):
    model, images = robustzoo.load(NAMES[0]), load_dataset("digits")
    found = evaluate_corruptions(model, "digits", digits_c, severity=2, n=30)
    ids, doc = found.doc["dataset"]["indices"], found.doc
    survived = {i for i in ids if int(model(images[i][0][None]).argmax()) == images[i][1]}
    assert found.clean_accuracy.correct == len(survived)
    for severity in (1, 2):
        for name in CORRUPTION_NAMES:
            array = np.load(digits_c / f"{name}.npy")[(severity - 1) * 500 : severity * 500]
            x = torch.from_numpy(array[ids].transpose(0, 3, 1, 2)).float() / 255
            with torch.no_grad():
                right = [i for i, p in zip(ids, model(x).argmax(1), strict=True) if int(p) == images[i][1]]
            assert doc["corruptions"]["correct"][name][severity - 1] == len(right)
            survived &= set(right)
    assert {v.id for v in found.verdicts if v.robust} == survived
    assert found.threat_model == ThreatModel.parse("corruptions:2") and doc["passes"]["forward"] == 30 * 31
    again = evaluate_corruptions(model, "digits", digits_c, severity=2, n=30, micro_batch_size=7)
    assert again.doc["samples"] == doc["samples"]


def test_in_card_report_and_comparison(digits_c, tmp_path):
    folders = []
    for name in NAMES:
        folder = tmp_path / name
        shutil.copytree(robustzoo.load(name).folder, folder)
        shutil.rmtree(folder / "verified", ignore_errors=True)
        for file in (folder / "evidence").iterdir():
            file.unlink()
        run("evaluate", folder, "--threat-model", "corruptions", "--corrupted", digits_c, "--n", 20)
        folders.append(folder)
    run("evaluate", folders[0], "--protocol", "pgd-3", "--n", 20)
    (file,) = (folders[0] / "evidence").glob("corruptions*.json")
    Evidence.load(file)
    run("card", folders[0])
    card = (folders[0] / "README.md").read_text()
    assert "| corruption | severity 1 |" in card and "| jpeg_compression |" in card
    assert "corruptions up to severity 5" in card and "`corruptions` tries less" not in card
    text = run("verify", folders[0], "--mode", "full")
    assert "CONFIRMED" in text and "common corruptions are not checked here" in text
    text = run("report", folders[0])
    assert "gaussian_noise" in text and "published arrays" in text
    assert "mean over severities" in run("compare", *folders)


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        (lambda d: d.pop("corruptions"), "corruptions"),
        (lambda d: d["corruptions"]["correct"]["fog"].append(3), "severities"),
        (lambda d: d["corruptions"]["correct"].update(fog=[99, 99]), "counts from"),
        (lambda d: d["threat_model"].update(norm="l2"), "corruptions"),
    ],
)
def test_evidence_that_contradicts_itself_is_refused(digits_c, change, keyword):
    found = evaluate_corruptions(robustzoo.load(NAMES[0]), "digits", digits_c, severity=2, n=5)
    doc = json.loads(json.dumps(found.doc))
    change(doc)
    with pytest.raises(EvidenceError, match=keyword):
        Evidence(doc).validate()


def write_images(folder, shade: int) -> None:
    for label, name in enumerate(("a", "b")):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (40, 40), (100 * label, shade, 10 * i)).save(folder / name / f"{i}.png")


def test_folders_in_the_layout_of_imagenet_c(tmp_path):
    write_images(tmp_path / "clean", 0)
    write_images(tmp_path / "c" / "fog" / "2", 77)
    clean = open_data(tmp_path / "clean")
    source = open_corrupted(clean, tmp_path / "c")
    assert [round(float(255 * v)) for v in source.image(4, "fog", 2)[:, 0, 0]] == [100, 77, 10]
    with pytest.raises(MissingData, match="snow"):
        source.image(0, "snow", 1)
    (tmp_path / "c/fog/2/a/0.png").rename(tmp_path / "c/fog/2/a/9.png")
    with pytest.raises(DataError, match="other names"):
        open_corrupted(clean, tmp_path / "c").image(0, "fog", 2)


def test_made_from_clean_images(tmp_path):
    write_images(tmp_path / "clean", 0)
    clean = open_data(tmp_path / "clean")
    if importlib.util.find_spec("imagecorruptions") is None:
        with pytest.raises(MissingData, match="imagecorruptions-imaug"):
            open_corrupted(clean, None)
        pytest.skip("imagecorruptions-imaug is not installed")
    one, other = open_corrupted(clean, None), open_corrupted(clean, None, seed=1)
    for name in CORRUPTION_NAMES:
        x = one.image(1, name, 3)
        assert x.shape == (3, 40, 40) and x.min() >= 0 and x.max() <= 1
        assert torch.equal(x, one.image(1, name, 3)), name
    assert not torch.equal(one.image(1, "gaussian_noise", 3), other.image(1, "gaussian_noise", 3))


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        (lambda z: z - z.mean(0), "other images"),
        (lambda z: z + torch.randn_like(z), "random in the forward"),
        (lambda z: z.softmax(1), "softmax"),
    ],
)
def test_a_model_that_attacks_would_refuse_is_refused(digits_c, change, keyword):
    class Changed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = robustzoo.load(NAMES[0])

        def forward(self, x):
            return change(self.inner(x))

    with pytest.raises(RobustzooError, match=keyword):
        evaluate_corruptions(Changed().eval(), "digits", digits_c, severity=1, n=8, progress=False)


def test_options_of_attacks_are_refused(digits_c):
    command = ["evaluate", NAMES[0], "--threat-model", "corruptions", "--corrupted", str(digits_c)]
    for option in (["--protocol", "apgd-ce"], ["--workers", "2"], ["--compile"], ["--restart"]):
        done = CliRunner().invoke(group, [*command, *option])
        assert done.exit_code == 2 and f"{option[0]} is of attacks" in done.output


def test_refusals(digits_c, tmp_path):
    model = robustzoo.load(NAMES[0])
    np.save(tmp_path / "labels.npy", np.zeros(2500, np.uint8))
    for call, error, keyword in (
        (lambda: evaluate_corruptions(model, "digits", tmp_path), DataError, "other labels"),
        (lambda: evaluate_corruptions(model, "digits", tmp_path / "no"), MissingData, "no folder"),
        (lambda: evaluate_corruptions(model, "digits", digits_c, severity=6), RobustzooError, "1 to 5"),
        (lambda: robustzoo.evaluate(model, "digits", "corruptions"), RobustzooError, "no attacks for norm"),
        (lambda: robustzoo.recipe(NAMES[0], {"threat_model": "corruptions"}), RobustzooError, "trained"),
    ):
        with pytest.raises(error, match=keyword):
            call()
