"""Every loss with TrH on every ZeRO stage, one and two ranks: the weights of plain PyTorch.

SGD, a batch of 8: Adam divides a gradient by its size, so that one which is rounding alone (the bias of the
keys, which softmax cancels) becomes a step of the full rate. The tiny network really is sharded: no weight
is too small for ZeRO 3, and a gradient bucket is a quarter of it.
"""

from __future__ import annotations

import json

import pytest
import torch

from robustzoo.models import read_folder
from tests.training.plain_pytorch import largest_difference, plain_pytorch
from tests.training.ranks import run_on_ranks
from tests.training.small import SGD, small
from training.export import export_run
from training.run_folder import RunFolder

DIGITS = "vit_micro2.digits_linf"
LOSSES = ("at", "trades", "alp", "mart")
STAGES = {f"zero{stage}": ["--zero", str(stage)] for stage in range(4)}
MORE = {  # of AT alone: what they change has nothing to do with the loss
    "accumulated": ["--zero", "1", "--micro-batch", "2"],
    "accumulated3": ["--zero", "3", "--micro-batch", "2"],
    "offloaded": ["--zero", "2", "--offload", "optimizer"],
    "offloaded3": ["--zero", "3", "--offload", "optimizer"],
    "recomputed": ["--zero", "2", "--activation-checkpointing"],
    "recomputed3": ["--zero", "3", "--activation-checkpointing"],
}


def layouts(loss: str) -> dict[str, list[str]]:
    """Name -> flags."""
    return STAGES | (MORE if loss == "at" else {})


def arguments_of(loss: str, steps: int) -> list[str]:
    """A uniform start for TRADES: at its own, 0.001 from the image, the gradient is all but zero."""
    start = ["--set", "attack_start=uniform"] if loss == "trades" else []
    return [f"{DIGITS}.{loss}_trh", *small(total_steps=steps), *start, *SGD]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(request, tmp_path_factory):
    """(ranks, folder of 20 steps of every loss on every layout), made in one launch."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    lists = [
        [*arguments_of(loss, 20), *flags, "--out", str(folder / loss / layout)]
        for loss in LOSSES
        for layout, flags in layouts(loss).items()
    ]
    run_on_ranks(request.param, lists, folder)
    return request.param, folder


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_twenty_steps_equal_plain_pytorch(trained, weights, loss):
    ranks, folder = trained
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    by_hand = {parts: plain_pytorch(arguments_of(loss, 20), parts=parts) for parts in (ranks, 4)}
    torch.set_num_threads(threads)
    for layout, flags in layouts(loss).items():
        parts = 4 if "--micro-batch" in flags else ranks
        difference = largest_difference(weights(folder / loss / layout / "model"), by_hand[parts])
        assert difference < 1e-5, layout


def test_zero3_on_two_ranks(tmp_path, weights):
    """Trained, averaged, validated, cut and resumed, and exported from the parts in a checkpoint."""
    trades = arguments_of("trades", 4)
    swa = [f"{DIGITS}.at_swa", *small(), *SGD[:4], "--set", "swa_decay=0.5", "--validate-every", "2"]
    runs = {
        "trades": [*trades, "--zero", "3"],
        "swa1": [*swa, "--zero", "1"],
        "swa3": [*swa, "--zero", "3"],
        "cut": [*swa, "--zero", "3", "--max-steps", "2"],
    }
    lists = [[*arguments, "--out", str(tmp_path / name)] for name, arguments in runs.items()]
    lists.append([*swa, "--zero", "3", "--out", str(tmp_path / "cut"), "--resume"])
    said, _ = run_on_ranks(2, lists, tmp_path)
    assert "ZeRO 3, float32" in said

    assert largest_difference(weights(tmp_path / "trades/model"), plain_pytorch(trades, parts=2)) < 1e-5
    average = weights(tmp_path / "swa3/model")
    assert largest_difference(average, weights(tmp_path / "swa1/model")) < 1e-5
    assert largest_difference(average, weights(tmp_path / "cut/model")) == 0
    logs = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("swa1", "swa3")]
    for one, other in zip(*(map(_record, log) for log in logs), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)

    for name in ("swa3", "trades"):
        before = weights(tmp_path / name / "model")
        _, step, digest = export_run(RunFolder(tmp_path / name))  # from the shards of the checkpoint
        assert step == 4 and read_folder(tmp_path / name / "model", sha256=digest)
        assert largest_difference(weights(tmp_path / name / "model"), before) == 0


def _record(line: str) -> dict[str, float]:
    return {name: value for name, value in json.loads(line).items() if name != "images_per_second"}
