"""Batch norm in training: running statistics in attacks, those of the batch in training, kept everywhere."""

from __future__ import annotations

import pytest
import torch

from robustzoo.data import evaluation_subset, load_dataset
from robustzoo.models import read_folder
from robustzoo.models.batch_norm import renew_statistics, running_statistics
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.registry import recipe
from robustzoo.registry.catalog import ARCHITECTURES
from robustzoo.registry.digests import sha256_file
from robustzoo.training.export import export_run
from robustzoo.training.run_folder import RunFolder
from tests.training.plain_pytorch import largest_difference, plain_pytorch
from tests.training.ranks import run_on_ranks
from tests.training.small import NO_ATTACK, SGD, small
from tests.training.tiny_batch_norm import KEY, ROW

AT, TRADES, AVERAGES = (f"{KEY}.digits_linf.{method}" for method in ("at_trh", "trades_trh", "at_swa"))
MODEL = "model/model.safetensors"
STATISTICS = ("running_mean", "running_var")


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, KEY, ROW)


def of_twenty_steps(name: str) -> list[str]:
    return [name, *small(total_steps=20), *SGD]


def statistics(state):
    return {name: t for name, t in state.items() if name.endswith(STATISTICS)}


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_equals_plain_pytorch(train, tmp_path, weights, stage):
    """After twenty steps on clean and adversarial images, which batch norm sees apart."""
    arguments = [*of_twenty_steps(TRADES), *NO_ATTACK]
    assert train([*arguments, "--out", str(tmp_path / "run"), "--zero", stage]) == 0
    found, by_hand = weights(tmp_path / "run/model"), plain_pytorch(arguments)
    assert largest_difference(statistics(found), statistics(by_hand)) < 1e-4
    assert largest_difference(found, by_hand) < 1e-4


TRADES_RUN = [TRADES, *small(), *SGD, *NO_ATTACK]
AVERAGED = [AVERAGES, *small(), *SGD[:4], "--set", "swa_decay=0.5", "--validate-every", "2"]
RUNS = {
    "trades1": [*TRADES_RUN, "--zero", "1"],
    "swa1": [*AVERAGED, "--zero", "1"],
    "cut1": [*AVERAGED, "--zero", "1", "--max-steps", "2"],
    # These last, as in test_two_ranks.
    "trades3": [*TRADES_RUN, "--zero", "3"],
    "swa3": [*AVERAGED, "--zero", "3"],
    "cut3": [*AVERAGED, "--zero", "3", "--max-steps", "2"],
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder of RUNS on two processes, those that were cut resumed."""
    folder = tmp_path_factory.mktemp("launched")
    lists = [[*arguments, "--out", str(folder / name)] for name, arguments in RUNS.items()]
    for stage in ("1", "3"):
        resumed = [*AVERAGED, "--zero", stage, "--out", str(folder / f"cut{stage}"), "--resume"]
        lists.insert(3 if stage == "1" else len(lists), resumed)
    run_on_ranks(2, lists, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trades1", "trades3"])
def test_two_ranks_have_the_mean_of_what_each_has_seen(launched, weights, name):
    assert largest_difference(weights(launched / name / "model"), plain_pytorch(TRADES_RUN, parts=2)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1", "3"])
def test_averaged_weights_resume_and_export_with_their_statistics(launched, weights, stage):
    run = launched / f"swa{stage}"
    digest = sha256_file(run / MODEL)
    assert sha256_file(launched / f"cut{stage}" / MODEL) == digest
    before = weights(run / "model")
    assert export_run(RunFolder(run))[2] == digest
    assert largest_difference(weights(run / "model"), before) == 0


def test_statistics_of_averaged_weights_are_those_of_training_images(train, tmp_path):
    assert train([*AVERAGED, "--out", str(tmp_path / "run")]) == 0
    model = read_folder(tmp_path / "run/model")
    found = {name: tensor.clone() for name, tensor in running_statistics(model).items()}
    chosen = evaluation_subset(images := load_dataset("digits", split="train"), len(images))
    pixels = [torch.stack([images[i][0] for i in part]) for part in torch.tensor(chosen.indices).split(8)]
    pixels[-1] = torch.cat([pixels[-1], images[chosen.indices[0]][0].expand(8 - len(pixels[-1]), -1, -1, -1)])
    renew_statistics(model, pixels)
    assert largest_difference(running_statistics(model), found) < 0.05


def test_recomputing_activations_counts_no_batch_twice(train, tmp_path, weights):
    """With AWP, whose ascent leaves no trace in the statistics either."""
    arguments = [f"{KEY}.digits_linf.trades_awp", *small(), *SGD[:4]]
    for flags in ([], ["--activation-checkpointing"]):
        assert train([*arguments, *flags, "--out", str(tmp_path / f"run{len(flags)}")]) == 0
    found = [weights(tmp_path / f"run{number}/model") for number in (0, 1)]
    assert largest_difference(*found) < 1e-6
    counters = [int(t) for name, t in found[0].items() if name.endswith("num_batches_tracked")]
    assert set(counters) == {8}  # four steps, clean and adversarial


def test_an_attack_sees_running_statistics_and_leaves_them():
    chosen = recipe(AT, {"attack_warmup_steps": 0})
    objective, model = Objective(chosen), pixel_model(chosen)
    x, y, numbers = torch.rand(8, 1, 8, 8), torch.arange(8), torch.arange(8)
    model(x)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    keys = {"step": 0, "seed": 0, "epochs": numbers, "ids": numbers}
    together = objective.attack(model, x, y, **keys)
    alone = objective.attack(model, x[:1], y[:1], **{**keys, "epochs": numbers[:1], "ids": numbers[:1]})
    assert torch.allclose(alone, together[:1], atol=1e-5) and model.training
    assert largest_difference(model.state_dict(), before) == 0
