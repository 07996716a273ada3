"""Which model a command means: functions of a file, names of timm and of the zoo; refusals in words."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from robustzoo.cli import group
from robustzoo.cli.models import open_model
from robustzoo.errors import RobustzooError

SOURCE = """
import torch


class Mean(torch.nn.Module):
    input_shape = (3, 8, 8)

    def forward(self, x):
        grey = x.mean((1, 2, 3))
        return 9 * torch.stack([0.5 - grey, grey - 0.5], 1)


def make():
    return Mean().eval()


def train_mode():
    return Mean()


def needs(argument):
    return Mean()


def fails():
    raise KeyError("weights")


def no_module():
    return 7


def leaves():
    raise SystemExit(5)


def interrupted():
    raise KeyboardInterrupt


constant = 3
instance = Mean().eval()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_model_of_a_test.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop(path.stem, None)


@pytest.fixture
def images(tmp_path):
    """Dark and light pictures, one folder a class; two of twelve are too near the border to be robust."""
    for name, level in (("dark", 60), ("light", 190)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            near = 124 if name == "dark" else 131
            picture = np.full((8, 8, 3), near if i == 0 else level + i, np.uint8)
            Image.fromarray(picture).save(tmp_path / "images" / name / f"{i}.png")
    return tmp_path / "images"


def test_your_own_model_on_your_own_images(file, images):
    command = ["evaluate", f"{file}:make", "--data", str(images), "--threat-model", "linf:8/255"]
    done = CliRunner().invoke(group, [*command, "--protocol", "apgd-ce", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert len(document["model"].pop("weights")) == 64
    assert document["model"] == {"name": "my_model_of_a_test.py:make", "sha256": None}
    assert document["counts"]["clean_correct"] == 12 and document["counts"]["robust_correct"] == 10
    assert "does with your rights" in done.stderr


@pytest.mark.parametrize("shape", ["(3, 8, 12)", "(3, 12, 8)"])
def test_images_are_cropped_to_the_height_and_the_width_of_the_model(file, images, shape):
    file.write_text(SOURCE.replace("(3, 8, 8)", shape))
    command = ["evaluate", f"{file}:make", "--data", str(images), "--threat-model", "linf:8/255"]
    done = CliRunner().invoke(group, [*command, "--protocol", "apgd-ce", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"]["robust_correct"] == 10


def test_a_class_folder_beyond_the_outputs_is_named(file, images):
    (images / "dark").rename(images / "shade")  # the last in order
    (images / "medium").mkdir()
    Image.new("RGB", (8, 8)).save(images / "medium" / "0.png")
    command = ["evaluate", f"{file}:make", "--data", str(images), "--threat-model", "linf:8/255"]
    done = CliRunner().invoke(group, [*command, "--protocol", "apgd-ce", "--json"])
    assert done.exit_code == 2
    words = "label of sample 7 is 2 (class 'shade'), but the model has 2 outputs"
    assert words in json.loads(done.stdout)["message"]


def test_a_module_of_the_file_is_taken_as_it_is(file):
    assert open_model(f"{file}:instance").name == "my_model_of_a_test.py:instance"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", r"has no function 'absent'; it has Mean, make"),
        ("constant", "is a int; expected a function"),
        ("fails", r"failed: KeyError: 'weights' \(line 26\)"),
        ("needs", "failed: TypeError: .*argument"),
        ("leaves", r"failed: SystemExit: 5 \(line 34\)"),
        ("no_module", r"returned a int; expected a torch.nn.Module from pixels"),
    ],
)
def test_functions_that_make_no_model(file, name, words):
    with pytest.raises(RobustzooError, match=words):
        open_model(f"{file}:{name}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module_here\n", r"ModuleNotFoundError.*\(line 1\)"),
        ("def f(:\n", r"SyntaxError.*line 1"),
        ("import sys\nsys.exit(5)\n", r"cannot be imported: SystemExit: 5 \(line 2\)"),
    ],
)
def test_files_that_cannot_be_imported(file, source, words):
    file.write_text(source)
    with pytest.raises(RobustzooError, match=words):
        open_model(f"{file}:f")


def test_a_function_that_leaves_python_is_bad_input_and_an_interrupt_stays_one(file):
    command = ["evaluate", f"{file}:leaves", "--data", str(file.parent), "--threat-model", "linf:0.1"]
    done = CliRunner().invoke(group, [*command, "--json"])
    assert done.exit_code == 2 and json.loads(done.stdout)["error"] == "RobustzooError"
    with pytest.raises(KeyboardInterrupt):
        open_model(f"{file}:interrupted")


@pytest.mark.parametrize("end", ["", ":"])
def test_a_file_without_a_function_asks_for_one(file, end):
    with pytest.raises(RobustzooError, match=r"names no function; expected FILE.py:FUNCTION"):
        open_model(f"{file}{end}")


def test_files_that_are_not_there_or_shadow_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RobustzooError, match="there is no file"):
        open_model(f"{tmp_path}/absent.py:make")
    for name, words in (("json.py", "'json' already means"), ("my-model.py", "rename the file")):
        (tmp_path / name).write_text("def make(): pass\n")
        with pytest.raises(RobustzooError, match=words):
            open_model(f"{tmp_path / name}:make")


def test_what_goes_with_such_a_model(file, images):
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(group, ["evaluate", *arguments, "--protocol", "apgd-ce", "--json"])
        assert done.exit_code == 2
        return json.loads(done.stdout)["message"]

    assert "no dataset of its own" in run(f"{file}:make", "--threat-model", "linf:8/255")
    assert "no threat model" in run(f"{file}:make", "--data", str(images))
    options = ("--data", str(images), "--threat-model", "linf:8/255")
    assert "training mode" in run(f"{file}:train_mode", *options)


def test_names_of_the_zoo_bring_their_own_data():
    opened = open_model("vit_micro2.digits_linf.at_base")
    assert (opened.name, opened.dataset, opened.folder) == (None, "digits", None)
    options = dict.fromkeys(("data", "data_root", "resize", "crop", "interpolation", "classes"))
    assert opened.images(options).key == "digits" and not options


def test_a_name_without_weights_is_refused_before_torch_is_loaded(without_torch):
    commands = [("evaluate",), ("verify",), ("crosscheck",), ("diagnose", "masking")]
    for name, message in (
        ("vit_micro2.digits_linf.at_thr", "Did you mean vit_micro2.digits_linf.at_trh"),
        ("vit_l16.imagenet_linf.at_trh", "no weights of vit_l16.imagenet_linf.at_trh are published"),
    ):
        for code, out, said in without_torch([(*command, name) for command in commands]):
            assert (code, out) == (2, "") and message in said, said
