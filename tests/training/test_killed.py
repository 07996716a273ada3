"""SIGKILL at any moment: every resume succeeds and ends with the weights of the uninterrupted run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from robustzoo.registry.digests import sha256_file
from tests.training.small import ROOT, small

ARGUMENTS = ["vit_micro2.digits_linf.trades_trh_awp_swa", *small(total_steps=40), "--checkpoint-every", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1", "3"])
def test_killed_twenty_times(subprocess_environment, tmp_path, stage):
    """Weights, their averages, the log and the best reading; ZeRO 3 without AWP, which it does not have."""
    method = ARGUMENTS[0] if stage == "1" else "vit_micro2.digits_linf.at_trh_swa"
    arguments = [method, *ARGUMENTS[1:], "--validate-every", "7", "--zero", stage]
    command = [sys.executable, str(ROOT / "tests/training/kills.py"), str(tmp_path), "20", "0", "--"]
    done = subprocess.run(
        [*command, *arguments], env=subprocess_environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["killed"]) == 20 and len(set(told["killed"])) > 5
    assert max(told["resumed_at"]) > 0
    whole = tmp_path / "whole"
    environment = subprocess_environment | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(ROOT / "training/train.py"), *arguments, "--out", str(whole)]
    subprocess.run(program, env=environment, check=True, capture_output=True, cwd=tmp_path)
    for run in told["runs"]:
        assert sha256_file(f"{run}/model/model.safetensors") == sha256_file(whole / "model/model.safetensors")
        assert _log(f"{run}/metrics.jsonl") == _log(whole / "metrics.jsonl")


def _log(path) -> list[dict]:
    with Path(path).open() as lines:
        return [json.loads(line) | {"images_per_second": None} for line in lines]
