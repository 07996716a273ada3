"""Two processes under the deepspeed launcher: equal to one, resumed exactly, refused in words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from robustzoo.models import read_folder
from robustzoo.registry.digests import sha256_file
from robustzoo.training.export import export_run
from robustzoo.training.run_folder import RunFolder
from tests.training.plain_pytorch import largest_difference, plain_pytorch
from tests.training.ranks import free_port, run_on_ranks
from tests.training.small import AT_TRH, ROOT, SGD, small

MODEL = "model/model.safetensors"


# Every stage, loss and layout against plain PyTorch: test_layouts, slow.
AT = [AT_TRH, *small(), *SGD]
SWA = ["vit_micro2.digits_linf.at_swa", *small(), *SGD[:4], "--set", "swa_decay=0.5", "--validate-every", "2"]
RUNS = {
    "zero1": AT,
    "accumulated": [*AT, "--zero", "2", "--micro-batch", "2"],
    "swa1": SWA,
    # These last: DeepSpeed's ZeRO 3 leaves its own linear layer in the process, which rounds differently.
    "swa3": [*SWA, "--zero", "3"],
    "cut": [*SWA, "--zero", "3", "--max-steps", "2"],
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """(folder of RUNS, the last of them resumed; what each rank said), made in one launch."""
    folder = tmp_path_factory.mktemp("launched")
    lists = [[*arguments, "--out", str(folder / name)] for name, arguments in RUNS.items()]
    lists.append([*SWA, "--zero", "3", "--out", str(folder / "cut"), "--resume"])
    return folder, run_on_ranks(2, lists, folder)


def test_two_ranks_equal_plain_pytorch(launched, weights):
    """The whole batch at once, attacked in the parts that ranks and micro-batches have."""
    folder, said = launched
    assert "batch 8 = 2 processes x 4 x 1 accumulated, ZeRO 1, float32" in said[0]
    assert "step 1/4" in said[0] and "step 1/4" not in said[1]
    by_hand = {parts: plain_pytorch(AT, parts=parts) for parts in (2, 4)}
    for name, parts in {"zero1": 2, "accumulated": 4}.items():
        assert largest_difference(weights(folder / name / "model"), by_hand[parts]) < 1e-5, name


def test_two_ranks_resume_exactly(launched, train):
    folder, _ = launched
    run = RunFolder(folder / "cut")
    trained = sha256_file(folder / "swa3" / MODEL)
    assert sha256_file(run.path / MODEL) == trained
    assert len(list(run.checkpoint(4).glob("random_state_rank*.pt"))) == 2
    assert len(list(run.checkpoint(4).glob("averaged_weights_rank*.safetensors"))) == 2
    assert train([*SWA, "--zero", "3", "--out", str(run.path), "--resume"]) == 2  # one process, not two
    assert sha256_file(run.path / MODEL) == trained


def test_zero3_averages_validates_and_exports_as_zero1(launched, weights):
    """Averages kept in parts, validated in place of the weights, and put together from a checkpoint."""
    folder, _ = launched
    average = weights(folder / "swa3/model")
    assert largest_difference(average, weights(folder / "swa1/model")) < 1e-5
    logs = [(folder / name / "metrics.jsonl").read_text().splitlines() for name in ("swa1", "swa3")]
    for one, other in zip(*([json.loads(line) for line in log] for log in logs), strict=True):
        del one["images_per_second"], other["images_per_second"]
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    _, step, digest = export_run(RunFolder(folder / "swa3"))
    assert step == 4 and read_folder(folder / "swa3/model", sha256=digest)
    assert largest_difference(weights(folder / "swa3/model"), average) == 0


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
