"""The whole way of a network with batch norm: trained on two ranks, killed, resumed, exported, evaluated,
carded, verified; on the photographs of ../shared. Minutes."""

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
from tests.training.ranks import run_on_ranks, start_ranks
from tests.training.small import ROOT

MODEL = "model/model.safetensors"
STEPS = ["total_steps=50", "attack_steps=1", "attack_step_ratio=1.25", "awp_warmup_steps=0", "swa_decay=0.9"]


def run(method: str, data, folder, *more: str) -> list[str]:
    """The arguments of a run of 50 steps."""
    fields = [f for f in STEPS if f.partition("_")[0] in method or f.startswith(("total", "attack"))]
    settings = [item for field in fields for item in ("--set", field)]
    flags = ["--batch-size", "4", "--zero", "1", "--checkpoint-every", "10", "--validate-every", "50"]
    name = f"resnet18.cifar10jpg_linf.{method}"
    return [name, "--data", str(data), *settings, *flags, "--out", str(folder), *more]


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at_trh", "trades_awp_swa"])
def test_trained_killed_resumed_exported_evaluated_carded_verified(shared, tmp_path, monkeypatch, method):
    data = shared / "data/cifar10jpg"
    if not data.is_dir():
        pytest.skip("../shared has no photographs")
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    kill_after(10, run(method, data, cut.path), cut, tmp_path)
    lists = [run(method, data, cut.path, "--resume"), run(method, data, whole.path)]
    said = run_on_ranks(2, lists, tmp_path)[0]
    assert "resuming after step" in said and "2 processes x 2 x 1 accumulated, ZeRO 1" in said
    digest = sha256_file(whole.path / MODEL)
    assert sha256_file(cut.path / MODEL) == digest
    assert export_run(cut)[2] == digest
    model = read_folder(cut.model)
    counters = {int(t) for name, t in model.state_dict().items() if name.endswith("num_batches_tracked")}
    assert counters == {50 if method == "at_trh" else 100}  # TRADES: clean and adversarial apart
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for command in (
        ["evaluate", str(cut.model), "--data", str(data), "--protocol", "apgd-ce", "--n", "8"],
        ["card", str(cut.model)],
        ["verify", str(cut.model), "--data", str(data)],
    ):
        done = subprocess.run(
            [sys.executable, "-c", "from robustzoo.cli import main; main()", *command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    assert f"resnet18.cifar10jpg_linf.{method}" in (cut.model / "README.md").read_text()
