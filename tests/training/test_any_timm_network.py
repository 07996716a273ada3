"""Training, resuming and exporting a network that no row of the catalog knows."""

from __future__ import annotations

import json

import pytest
import timm
import torch

from robustzoo.errors import RobustzooError
from robustzoo.models import PixelModel, read_folder
from robustzoo.registry.digests import sha256_file
from robustzoo.training.train import require_recomputing
from tests.training.plain_pytorch import largest_difference
from tests.training.small import AT_TRH, small

RESNET = {"stem_width": 8, "channels": [8, 8, 16, 16]}
DISTILLED = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
MODEL = "model/model.safetensors"


def arguments(tmp_path, base: str, network: str, model_args: dict) -> list[str]:
    """Of a run of a recipe file."""
    file = tmp_path / "mine.json"
    changes = {"architecture": f"timm:{network}", "model_args": model_args}
    file.write_text(json.dumps({"base_name": base, **changes}))
    return [str(file), *small()]


def test_resumed_and_exported(train, tmp_path):
    run = arguments(tmp_path, AT_TRH, "resnet10t", RESNET)
    assert train([*run, "--out", str(tmp_path / "whole")]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--max-steps", "2"]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    assert sha256_file(tmp_path / "cut" / MODEL) == sha256_file(tmp_path / "whole" / MODEL)
    model = read_folder(tmp_path / "cut/model")
    assert model.recipe.architecture == "timm:resnet10t" and model.recipe.model_args == RESNET


@pytest.mark.parametrize("stage", ["0", "3"])
def test_every_stage_trains_it(train, tmp_path, weights, stage):
    run = arguments(tmp_path, AT_TRH, "resnet10t", RESNET)
    assert train([*run, "--out", str(tmp_path / "one")]) == 0
    assert train([*run, "--out", str(tmp_path / stage), "--zero", stage]) == 0
    assert largest_difference(weights(tmp_path / "one/model"), weights(tmp_path / stage / "model")) < 1e-3


def test_a_network_that_cannot_recompute_is_refused():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(RobustzooError, match="activation-checkpointing"):
        require_recomputing(PixelModel(network, (0.0,), (1.0,), (1, 8, 8)))


@pytest.mark.parametrize("method", ["trades_awp", "at_trh"])
def test_without_a_linear_head_all_but_trh(train, tmp_path, capsys, method):
    base = f"vit_micro2.digits_linf.{method}"
    run = arguments(tmp_path, base, "deit_tiny_distilled_patch16_224", DISTILLED)
    assert train([*run, "--out", str(tmp_path / "run")]) == (2 if method == "at_trh" else 0)
    if method == "at_trh":
        assert "not linear" in capsys.readouterr().err and not (tmp_path / "run").exists()
    else:
        assert not read_folder(tmp_path / "run/model").has_linear_head


SWIN = {"window_size": 2, "depths": [1], "embed_dim": 8, "num_heads": [2], "patch_size": 2}


def test_a_network_with_computed_buffers_is_trained_resumed_and_exported(train, tmp_path):
    run = [*arguments(tmp_path, AT_TRH, "swin_tiny_patch4_window7_224", SWIN), "--out", str(tmp_path / "run")]
    assert train([*run, "--max-steps", "2"]) == 0
    assert train([*run, "--resume"]) == 0
    assert read_folder(tmp_path / "run/model").recipe.model_args == SWIN


def test_buffers_that_are_drawn_are_refused_before_the_first_step(train, tmp_path, capsys, monkeypatch):
    def drawn(**arguments):
        network = timm.create_model("resnet10t", **arguments)
        network.register_buffer("noise", torch.rand(3), persistent=False)
        return network

    monkeypatch.setitem(timm.models._registry._model_entrypoints, "resnet10d", drawn)
    monkeypatch.setattr(timm, "is_model", lambda name: True)
    run = arguments(tmp_path, AT_TRH, "resnet10d", RESNET)
    for more in ([], ["--estimate"]):
        assert train([*run, "--out", str(tmp_path / "run"), *more]) == 2
        assert "noise" in capsys.readouterr().err and not (tmp_path / "run").exists()
