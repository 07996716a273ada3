"""Five classes that no row knows: described, trained on, exported, evaluated, carded, verified, reported."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from PIL import Image

import robustzoo
from robustzoo.cards.evidence import Evidence
from robustzoo.cli import group
from robustzoo.data import open_data
from robustzoo.errors import RobustzooError
from robustzoo.training.plan import make_plan
from tests.own_images import CLASSES, write_flowers

NAME = "resnet_mini.cifar10jpg_linf.at_base"
SHORT = "batch_size=8 total_steps=50 warmup_steps=5 attack_steps=1 attack_warmup_steps=0 augmentation=shift"


def command(*arguments) -> str:
    done = CliRunner().invoke(group, list(map(str, arguments)))
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


def test_from_a_folder_to_a_verified_model(train, tmp_path):
    flowers = write_flowers(tmp_path / "flowers")
    command("data", "describe", flowers)
    changes = [flag for change in ("threat_model=linf:2/255", *SHORT.split()) for flag in ("--set", change)]
    data, run = ["--data", f"flowers:{flowers}"], tmp_path / "run"
    assert train([NAME, *data, *changes, "--out", str(run), "--validate-every", "50"]) == 0
    folder = run / "model"
    model = robustzoo.load(str(folder))
    assert model.classes == CLASSES and model.input_shape == (3, 16, 16)
    assert model.recipe.dataset == "own:flowers" and "cifar10" not in model.name

    command("evaluate", folder, *data, "--protocol", "pgd-3", "--n", 20)
    (file,) = (folder / "evidence").glob("*.json")
    evidence = Evidence.load(file)
    assert evidence.doc["dataset"]["id"] == "own:flowers" and evidence.clean_accuracy.value > 0.5
    assert evidence.doc["dataset"]["classes"] == list(CLASSES)
    assert "\ntulip " in command("report", folder)
    large = ["--protocol", "pgd-3", "--threat-model", "linf:64/255", "--n", 8]
    command("evaluate", folder, *data, *large)
    command("card", folder, "--data-root", flowers)
    with Image.open(folder / "evidence" / "perturbations.png") as drawn:
        assert drawn.height > 150  # images, fooling points and differences, not the points alone
    card = (folder / "README.md").read_text()
    assert "flowers (images of its author's own)" in card and "0 daisy, 1 iris" in card
    assert "licence of the images: unknown" in card
    assert "consistent" in command("verify", folder, "--data", flowers)
    assert "robustzoo verify FOLDER --data DIR\n" in card

    again = json.loads((folder / "config.json").read_text())["robustzoo"]["recipe"]
    (tmp_path / "recipe.json").write_text(json.dumps(again))
    plan = make_plan([str(tmp_path / "recipe.json"), "--data", str(flowers)])
    assert plan.recipe == model.recipe
    (flowers / "dataset.json").write_text(
        (flowers / "dataset.json").read_text().replace('"daisy",\n  "iris"', '"iris",\n  "daisy"')
    )
    with pytest.raises(RobustzooError, match="classes"):
        make_plan([str(tmp_path / "recipe.json"), "--data", str(flowers)])
    with pytest.raises(RobustzooError, match=r"dataset\.json"):
        make_plan([str(tmp_path / "recipe.json")])
    assert open_data(f"flowers:{flowers}").classes != CLASSES
