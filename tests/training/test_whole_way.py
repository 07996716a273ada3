"""The whole way: trained on two ranks, killed, resumed, exported, evaluated, carded, verified. A network with
batch norm on the photographs of ../shared, any network of timm on a folder of classes, methods of a package.
Minutes each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from robustzoo.models import read_folder
from robustzoo.registry.digests import sha256_file
from robustzoo.training.export import export_run
from robustzoo.training.run_folder import RunFolder
from tests.own_images import CLASSES, write_flowers
from tests.training.ranks import run_on_ranks, start_ranks
from tests.training.small import ROOT
from tests.training.test_packages import CHANGES, example  # noqa: F401

MODEL = "model/model.safetensors"
STEPS = [
    "total_steps=50",
    "warmup_steps=5",
    "attack_steps=1",
    "attack_step_ratio=1.25",
    "attack_warmup_steps=0",
]
FLAGS = ["--batch-size", "4", "--zero", "1", "--checkpoint-every", "10", "--validate-every", "50"]


def run(recipe: str, changes: list[str], data: str, folder, *more: str) -> list[str]:
    """The arguments of a run of 50 steps."""
    settings = [item for change in (*STEPS, *changes) for item in ("--set", change)]
    return [recipe, "--data", data, *settings, *FLAGS, "--out", str(folder), *more]


def kill_after(step: int, arguments: list[str], folder: RunFolder, place) -> None:
    """Start two ranks, and kill both without warning once a checkpoint of this step is there."""
    command = [sys.executable, str(ROOT / "tests/training/many_runs.py"), json.dumps([arguments])]
    ranks = start_ranks(2, command, place)
    try:
        while all(rank.poll() is None for rank in ranks) and (folder.latest_step() or 0) < step:
            time.sleep(0.05)
        assert step <= (folder.latest_step() or 0) < 50, (place / "said0").read_text()[-3000:]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.kill(rank.pid, signal.SIGKILL)
            rank.wait()


def whole_way(tmp_path, recipe: str, changes: list[str], data: str):
    """Go it, by the commands; the model at its end."""
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    kill_after(10, run(recipe, changes, data, cut.path), cut, tmp_path)
    lists = [run(recipe, changes, data, cut.path, "--resume"), run(recipe, changes, data, whole.path)]
    said = run_on_ranks(2, lists, tmp_path)[0]
    assert "resuming after step" in said and "2 processes x 2 x 1 accumulated, ZeRO 1" in said
    digest = sha256_file(whole.path / MODEL)
    assert sha256_file(cut.path / MODEL) == digest
    assert export_run(cut)[2] == digest
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for command in (
        ["evaluate", str(cut.model), "--data", data, "--protocol", "apgd-ce", "--n", "8"],
        ["card", str(cut.model)],
        ["verify", str(cut.model), "--data", data],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "robustzoo", *command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    model = read_folder(cut.model)
    assert model.recipe.name in (cut.model / "README.md").read_text()
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, changes, updates",
    [
        ("at_trh", [], 50),
        ("trades_awp_swa", ["awp_warmup_steps=0", "swa_decay=0.9"], 100),  # clean and adversarial apart
    ],
)
def test_batch_norm_on_photographs(shared, tmp_path, method, changes, updates):
    data = shared / "data/cifar10jpg"
    if not data.is_dir():
        pytest.skip("../shared has no photographs")
    name = f"resnet18.cifar10jpg_linf.{method}"
    model = whole_way(tmp_path, name, changes, str(data))
    assert model.recipe.name.startswith(name)
    counters = {int(t) for key, t in model.state_dict().items() if key.endswith("num_batches_tracked")}
    assert counters == {updates}


@pytest.mark.slow
def test_any_network_of_timm_on_classes_that_no_row_knows(tmp_path):
    flowers = write_flowers(tmp_path / "flowers", size=32)
    subprocess.run(
        [sys.executable, "-m", "robustzoo", "data", "describe", str(flowers)], check=True, cwd=ROOT
    )
    changes = ["architecture=timm:convnext_atto", "augmentation=shift", "trh_lambda=0.001"]
    model = whole_way(tmp_path, "resnet_mini.cifar10jpg_linf.at_trh", changes, f"flowers:{flowers}")
    assert model.classes == CLASSES
    assert (model.recipe.architecture, model.recipe.dataset) == ("timm:convnext_atto", "own:flowers")


@pytest.mark.slow
def test_methods_of_an_installed_package(tmp_path, example, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PYTHONPATH", str(example))
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"base_name": "vit_micro2.digits_linf.at_base", **CHANGES}))
    model = whole_way(tmp_path, str(file), [], "digits")
    assert (model.recipe.loss, model.recipe.defences) == (CHANGES["loss"], tuple(CHANGES["defences"]))
