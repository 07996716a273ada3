"""Two processes under the deepspeed launcher: equal to one, resumed exactly, refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from robustzoo.models import read_folder, sha256_file
from tests.training.plain_pytorch import largest_difference
from tests.training.ranks import free_port, run_on_ranks
from tests.training.small import AT_TRH, NO_ATTACK, ROOT, SGD, TRADES_TRH, small
from training.run_folder import RunFolder

MODEL = "model/model.safetensors"


def test_two_ranks_equal_one(train, tmp_path, weights):
    at, trades = [AT_TRH, *small(), *SGD], [TRADES_TRH, *small(), *SGD, *NO_ATTACK]
    runs = {
        **{f"zero{stage}": [*at, "--zero", stage] for stage in "012"},
        "accumulated": [*at, "--micro-batch", "2"],
        "trades": trades,
        "cut": [*at, "--max-steps", "2"],
    }
    lists = [[*arguments, "--out", str(tmp_path / name)] for name, arguments in runs.items()]
    lists.append([*at, "--out", str(tmp_path / "cut"), "--resume"])
    texts = run_on_ranks(2, lists, tmp_path)
    assert "batch 8 = 2 processes x 4 x 1 accumulated, ZeRO 1" in texts[0]
    assert "step 1/4" in texts[0] and "step 1/4" not in texts[1]

    for name, arguments in {"at": at, "trades": trades}.items():
        assert train([*arguments, "--out", str(tmp_path / "one" / name)]) == 0
    one = weights(tmp_path / "one/at/model")
    for name in ("zero0", "zero1", "zero2", "accumulated"):
        assert largest_difference(weights(tmp_path / name / "model"), one) < 1e-5, name
    assert (
        largest_difference(weights(tmp_path / "trades/model"), weights(tmp_path / "one/trades/model")) < 1e-5
    )
    assert sha256_file(tmp_path / "cut" / MODEL) == sha256_file(tmp_path / "zero1" / MODEL)
    assert len(list(RunFolder(tmp_path / "cut").checkpoint(4).glob("random_state_rank*.pt"))) == 2

    before = sha256_file(tmp_path / "cut" / MODEL)
    assert train([*at, "--out", str(tmp_path / "cut"), "--resume"]) == 2  # one process where there were two
    assert sha256_file(tmp_path / "cut" / MODEL) == before


@pytest.mark.slow
def test_two_ranks_killed_minus_nine(subprocess_environment, tmp_path):
    arguments = [AT_TRH, *small(total_steps=30), "--zero", "1", "--checkpoint-every", "1"]
    killed, whole = RunFolder(tmp_path / "killed"), tmp_path / "whole"

    def launch(out, *flags):
        launcher = ["deepspeed", "--num_accelerators", "2", "--master_port", free_port()]
        with (tmp_path / "said").open("w") as said:
            return subprocess.Popen(
                [*launcher, str(ROOT / "training/train.py"), *arguments, "--out", str(out), *flags],
                env=subprocess_environment,
                stdout=said,
                stderr=said,
                start_new_session=True,  # so that the launcher and its ranks can be killed together
            )

    process = launch(killed.path)
    while process.poll() is None and (killed.latest_step() or 0) < 10:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()
    assert 10 <= killed.latest_step() < 30
    for out, flags in ((killed.path, ["--resume"]), (whole, [])):
        assert launch(out, *flags).wait() == 0, (tmp_path / "said").read_text()
    assert sha256_file(killed.path / MODEL) == sha256_file(whole / MODEL)
    assert read_folder(whole / "model").recipe.base_name == AT_TRH
