"""Labels of images whose classes have names, for a model whose classes have names."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import robustzoo
from robustzoo.cli import group
from robustzoo.data import DataError, open_data
from robustzoo.data.samples import FolderOptions, open_samples
from robustzoo.errors import RobustzooError
from robustzoo.verification.comparable import data_differences, open_stated

COLOURS = {"cat": (250, 0, 0), "dog": (0, 250, 0), "eel": (0, 0, 250), "fox": (250, 250, 0)}
FAST = ("linf:1/1000", "pgd-1")


class Knowing(nn.Module):
    """Tells four colours apart, by name."""

    input_shape = (3, 8, 8)
    classes = ("fox", "eel", "dog", "cat")

    def __init__(self):
        super().__init__()
        self.known = nn.Parameter(torch.tensor([COLOURS[name] for name in self.classes]) / 255)

    def forward(self, x):
        return -1000 * (x.mean((2, 3))[:, None] - self.known).square().sum(-1)


def knowing() -> nn.Module:
    return Knowing().eval()


def nameless() -> nn.Module:
    model = Knowing().eval()
    model.classes = tuple("0123")
    return model


def folder(place, names, of=None):
    """A folder a class, of the colour of the name (of[i] where given), two images each."""
    for i, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for n in range(2):
            colour = COLOURS[(of or names)[i].lower()]
            Image.new("RGB", (8, 8), colour).save(place / name / f"{n}.png")
    return place


@pytest.mark.parametrize("names", [("cat", "dog", "eel", "fox"), ("cat", "eel"), ("Fox", "cat"), ("DOG",)])
def test_a_folder_is_measured_by_the_names_of_the_model(tmp_path, names):
    place = folder(tmp_path / "d", names)
    command = ["evaluate", f"{__file__}:knowing", "--data", str(place), "--threat-model", FAST[0]]
    done = CliRunner().invoke(group, [*command, "--protocol", FAST[1], "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["counts"]["clean_correct"] == 2 * len(names)
    assert "by their names among the model's" in done.stderr and f"= {names[-1]!r}" in done.stderr
    assert "taken for the first" not in done.stderr and "class folders, counted" not in done.stderr
    assert document["dataset"]["classes"] == list(Knowing.classes)


def test_verification_reads_the_same_labels_without_the_model(tmp_path):
    place = folder(tmp_path / "d", ("cat", "eel"))
    evidence = robustzoo.evaluate(knowing(), place, *FAST, progress=False)
    again = open_stated(evidence, place, None)
    assert again.labels.tolist() == [3, 3, 1, 1] and data_differences(evidence, again, []) == {}
    assert open_samples(again, knowing()).labels.tolist() == [3, 3, 1, 1]
    by_place = robustzoo.evaluate(nameless(), place, *FAST, progress=False)  # as before there were names
    again = open_samples(open_stated(by_place, place, None), knowing())
    assert again.labels.tolist() == [0, 0, 1, 1] and "classes" not in by_place.doc["dataset"]


def test_a_torch_dataset_with_names_is_measured_by_them():
    class Named(list):
        classes = ("eel", "fox")

    images = [Image.new("RGB", (8, 8), COLOURS[name]) for name in Named.classes]
    evidence = robustzoo.evaluate(knowing(), Named(zip(images, (0, 1), strict=True)), *FAST, progress=False)
    assert evidence.doc["counts"]["clean_correct"] == 2


def test_images_of_ones_own_are_measured_by_name(tmp_path):
    for split in ("train", "test"):
        folder(tmp_path / "zoo" / split, ("cat", "dog", "fox"))
    assert CliRunner().invoke(group, ["data", "describe", str(tmp_path / "zoo")]).exit_code == 0
    dataset = open_samples(f"zoo:{tmp_path / 'zoo'}", knowing())
    assert dataset.labels.tolist() == [3, 3, 2, 2, 0, 0] and dataset.classes == Knowing.classes
    evidence = robustzoo.evaluate(knowing(), dataset, *FAST, progress=False)
    assert open_stated(evidence, tmp_path / "zoo", None).labels.tolist() == dataset.labels.tolist()


@pytest.mark.parametrize("names", [("ant", "bee"), ("cat", "bee"), ("cat", "CAT")])
def test_names_that_disagree_are_refused_until_their_outputs_are_stated(tmp_path, names):
    place = folder(tmp_path / "d", names, of=("fox", "eel"))
    with pytest.raises(DataError, match=r"'fox', 'eel'.*--classes FILE"):
        robustzoo.evaluate(knowing(), place, *FAST, progress=False)
    (tmp_path / "names.txt").write_text("\n".join(names))
    dataset = open_samples(place, knowing(), options=FolderOptions(classes=tmp_path / "names.txt"))
    evidence = robustzoo.evaluate(knowing(), dataset, *FAST, progress=False)
    assert evidence.doc["counts"]["clean_correct"] == 4


def test_numbers_and_models_without_names_go_by_place(tmp_path):
    numbered = open_samples(folder(tmp_path / "n", ("0", "1"), of=("fox", "eel")), knowing())
    assert numbered.labels.tolist() == [0, 0, 1, 1]
    assert any("are numbers" in note and "0 = 'fox'" in note for note in numbered.notes)
    assert open_samples(folder(tmp_path / "d", ("cat", "eel")), nameless()).labels.tolist() == [0, 0, 1, 1]


def test_more_classes_than_outputs_are_refused_whichever_are_drawn(tmp_path):
    place = folder(tmp_path / "d", ("a", "b", "c", "d", "e"), of=("cat",) * 5)
    data = open_data(place)
    data.select([0, 1])
    with pytest.raises(RobustzooError, match=r"5 classes.*4 outputs"):
        robustzoo.evaluate(nameless(), data, *FAST, progress=False)
