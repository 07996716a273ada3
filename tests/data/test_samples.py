"""Images that people bring, through evaluate and the commands: the numbers of the tensors, or words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import nn

import robustzoo
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.passages import measured_on
from robustzoo.cli import group
from robustzoo.data import DataError, load_dataset, open_data
from robustzoo.data.samples import FolderOptions, open_samples
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.terms import place_of
from robustzoo.models.timm_models import fold
from robustzoo.reports.text import report
from robustzoo.verification.comparable import open_stated

NAME = "vit_micro2.digits_linf.at_base"
COLOURS = [(20 * i, 255 - 20 * i, 7 * i) for i in range(12)]
FAST = ("--threat-model", "linf:1/1000", "--protocol", "pgd-1")


class Wrapped(nn.Module):
    """A digits model as its owner may bring it: without recipe, with or without its size."""

    def __init__(self, sized: bool):
        super().__init__()
        self.inner = robustzoo.load(NAME)
        if sized:
            self.input_shape = (1, 8, 8)

    def forward(self, x):
        return self.inner(x[:, :1])


class Colours(nn.Module):
    """Knows twelve colours by heart; class i is COLOURS[i]."""

    input_shape = (3, 8, 8)

    def __init__(self):
        super().__init__()
        self.known = nn.Parameter(torch.tensor(COLOURS) / 255)

    def forward(self, x):
        return -1000 * (x.mean((2, 3))[:, None] - self.known).square().sum(-1)


def colours() -> nn.Module:
    return Colours().eval()


@pytest.fixture(scope="module")
def png_digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "digits"
    for i, (x, label) in enumerate(load_dataset("digits")):
        place = folder / str(label) / f"{i:03d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(x[0].numpy() * 255).astype(np.uint8)).save(place)
    return folder


def clean(model: nn.Module, dataset) -> int:
    x, y = (torch.stack(list(map(torch.as_tensor, part))) for part in zip(*dataset, strict=True))
    with torch.no_grad():
        return int((model(x).argmax(1) == y).sum())


def test_digits_as_files_are_classified_like_the_tensors(png_digits):
    expected = clean(robustzoo.load(NAME), load_dataset("digits"))
    for model in (robustzoo.load(NAME), Wrapped(sized=True).eval(), Wrapped(sized=False).eval()):
        dataset = open_samples(png_digits, model)
        assert len(dataset) == 500 and clean(model, dataset) == expected == 491, dataset.notes


def twelve(folder: Path, names) -> Path:
    for i, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), COLOURS[i]).save(folder / name / "1.png")
    return folder


@pytest.mark.parametrize("first, before", [(0, ""), (1, ""), (0, "class")])
def test_twelve_numbered_classes_get_their_own_labels(tmp_path, first, before):
    folder = twelve(tmp_path / "digits", [f"{before}{i}" for i in range(first, first + 12)])
    command = ["evaluate", f"{__file__}:colours", "--data", str(folder), *FAST]
    done = CliRunner().invoke(group, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["counts"]["clean_correct"] == 12
    assert document["dataset"]["id"] == "folder:digits"
    assert document["dataset"]["transform"]["keeps_exact"]
    brought = "images scaled to just cover 9 x 9 (bilinear), cropped at the centre to 8 x 8; those of 8 x 8"
    assert brought in report(Evidence(document))
    assert f"I{brought[1:]}" in measured_on(Evidence(document))
    assert f"11 = '{before}{first + 11}'" in done.stderr and "8 x 8" in done.stderr
    assert "warning: ordered as text" in done.stderr
    (file,) = (tmp_path / "out" / "evidence").glob("*.json")
    assert file.name == "pgd-1.folder_digits-test-all.json"
    again = CliRunner().invoke(
        group, [*command, "--out", str(tmp_path / "out"), "--resize", "10"], catch_exceptions=True
    )
    assert isinstance(again.exception, RobustzooError) and "transform" in str(again.exception)
    classes = tmp_path / "classes.txt"
    classes.write_text("\n".join(reversed([f"{before}{i}" for i in range(first, first + 12)])))
    done = CliRunner().invoke(group, [*command, "--classes", str(classes), "--json"])
    assert json.loads(done.stdout)["counts"]["clean_correct"] == 0


def test_the_stated_transform_reads_the_same_images_again(tmp_path):
    for size in ((8, 8), (20, 16), (16, 30)):
        (tmp_path / "d" / "a").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "d" / "a" / f"{size[0]}.png")
    options = FolderOptions(resize="12x10", interpolation="bicubic")
    dataset = open_samples(tmp_path / "d", colours(), options=options)
    evidence = robustzoo.evaluate(colours(), dataset, "linf:1/1000", "pgd-1", progress=False)
    again = open_stated(evidence, tmp_path / "d", None)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(dataset, again, strict=True))
    plain = open_samples(tmp_path / "d", colours())
    assert not torch.equal(plain[0][0], dataset[0][0])


def test_models_of_timm_get_their_own_preprocessing(tmp_path):
    import timm

    network = timm.create_model("test_resnet")
    cfg = {"input_size": (3, 96, 96), "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"}
    network.pretrained_cfg = {**network.pretrained_cfg, **cfg}
    (tmp_path / "a").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    stated = resolve_data_config(pretrained_cfg=network.pretrained_cfg)
    expected = create_transform(**{**stated, "mean": (0.0,) * 3, "std": (1.0,) * 3}, is_training=False)
    model = fold(network, "timm:x")
    x, _ = open_samples(tmp_path, model)[0]
    assert torch.allclose(x, expected(Image.fromarray(pixels)), atol=1e-6)
    assert "whatever their ratio" in open_samples(tmp_path, model).notes[0]


@pytest.mark.parametrize(
    "data, options, words",
    [
        ("digits", {"resize": "9"}, r"--resize.*leave them away.*folder:DIR"),
        ("FOLDER", {"resize": "0"}, r"--resize 0: expected a size in pixels"),
        ("FOLDER", {"crop": "axb"}, r"--crop axb: expected a size"),
        ("FOLDER", {"resize": "4", "crop": "8"}, "cannot crop 8 x 8 pixels from 4 x 4"),
        ("digit:FOLDER", {}, r"'digit' is no dataset.*Did you mean digits"),
        ("imagenet:", {}, "'imagenet:', which names no folder"),
        ("", {}, "'', which names no folder"),
        ("digits:FOLDER", {}, "would not be read"),
        ("FOLDER", {"classes": "absent.txt"}, "cannot be read"),
        (
            "cifar10jpg:FOLDER",
            {},
            r"model takes images of 3 x 8 x 8 .*cifar10jpg are 3 x 32 x 32.*folder:DIR",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, data, options, words):
    twelve(tmp_path / "test", ["cat"])
    Image.new("RGB", (32, 32)).save(tmp_path / "test" / "cat" / "1.png")
    place = tmp_path if "cifar" in data else tmp_path / "test"
    with pytest.raises(DataError, match=words):
        open_samples(data.replace("FOLDER", str(place)), colours(), options=FolderOptions(**options))


def test_long_and_foreign_names_of_folders_do_not_share_a_file(png_digits, tmp_path):
    x, y = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    evidence = robustzoo.evaluate(colours(), (x, y), "linf:1/1000", "pgd-1", progress=False)
    names = []
    for folder in ("\u732b", "\u72ac", "a" * 240, "a" * 241, "cats"):
        copy = Evidence(json.loads(json.dumps(evidence.doc)))
        copy.doc["dataset"]["id"] = f"folder:{folder}"
        names.append(place_of(copy.key(), tmp_path).name)
    assert len(set(names)) == 5 and max(map(len, names)) < 200 and names[-1].startswith("pgd-1.folder_cats-")


@pytest.mark.parametrize("keys", [("image", "label"), ("img", "fine_label")])
def test_dictionaries_of_a_dataset_are_read(keys):
    images = [Image.new("RGB", (8, 8), colour) for colour in COLOURS]
    dataset = open_data([dict(zip(keys, pair, strict=True)) for pair in zip(images, range(12), strict=True)])
    assert dataset.key == "dataset:list" and clean(colours(), dataset) == 12
    with pytest.raises(DataError, match=r'keys photo, label.*\[\(item\["IMAGE"\], item\["LABEL"\]\)'):
        open_data([{"photo": images[0], "label": 0}])
    with pytest.raises(DataError, match=r"pass data\['train'\]"):
        open_data({"train": [1], "test": [2]})
