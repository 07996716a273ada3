"""Bad usage: refused before torch and DeepSpeed are loaded, with status 2, and nothing is written."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from robustzoo.training.arguments import parse
from robustzoo.training.launch import LaunchError
from robustzoo.training.launcher import check_environment
from robustzoo.training.run_folder import RunFolderError
from robustzoo.training.usage import check
from tests.training.small import AT_TRH, ROOT

# train.py as a program, on a machine where importing torch or DeepSpeed fails.
PROGRAM = """
import runpy, sys
sys.modules |= {"torch": None, "deepspeed": None, "timm": None, "numpy": None}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
JPEGS = "vit_ti4.cifar10jpg_linf.at_trh"
MIXED = [JPEGS, "--data", "full", "--set", "extra_data=ddpm", "--set", "extra_fraction=0.5", "--out", "run"]
# What a launcher tells each of two processes of one machine, rank aside.
LAUNCHED = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def run(environment, folder, *arguments, program=ROOT / "training/train.py"):
    command = [sys.executable, "-c", PROGRAM, str(program), *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([AT_TRH, "--out", "file"], "file is a file; choose another --out"),
        ([AT_TRH, "--out", "file/run"], "file is a file; choose another --out"),
        ([AT_TRH, "--out", "full"], "full is not empty, and holds no run; choose another --out"),
        ([AT_TRH, "--out", "run", "--resume"], "leave out --resume to start one"),
        (["vit_micro2.digits_linf.at_thr", "--out", "run"], f"Did you mean {AT_TRH}"),
        (["vit_micro2.imagenet_linf.at_trh", "--out", "run"], "does not go with imagenet"),
        (["nowhere.json", "--out", "run"], "no recipe file 'nowhere.json'"),
        ([AT_TRH, "--out", "run", "--set", "trh_lamda=1"], "Did you mean trh_lambda"),
        ([AT_TRH, "--out", "run", "--set", "attack_steps=many"], "expected a whole number"),
        ([AT_TRH, "--out", "run", "--init", "nowhere"], "--init nowhere: no such file; expected"),
        ([AT_TRH, "--out", "run", "--init", "full"], "--init full: no such file; expected"),
        ([JPEGS, "--out", "run"], "cifar10jpg needs its images: add --data DIR"),
        ([JPEGS, "--out", "run", "--data", "nowhere"], "no data at nowhere"),
        ([JPEGS, "--out", "run", "--data", "empty"], "no data at empty, which is empty; give the folder of"),
        (
            [AT_TRH, "--out", "run", "--data", "empty"],
            "digits come with a dependency and need no data folder",
        ),
        ([AT_TRH, "--out", "run", "--batch-size", "1298"], "1,298 is more than the 1,297 training images"),
        ([AT_TRH, "--out", "run", "--init", "full/letter.txt"], "letter.txt is not a readable safetensors"),
        ([AT_TRH, "--out", "run", "--init", "weights.pth"], "write its state dict with safetensors.torch"),
        ([AT_TRH, "--out", "run", "--init", "pointer.safetensors"], "is a Git LFS pointer, not the weights"),
        ([AT_TRH, "--out", ""], "argument --out: expected a path, got ''"),
        ([AT_TRH, "--out", "run", "--data", ""], "argument --data: expected a path, got ''"),
        ([AT_TRH, "--out", "run", "--init", " "], "argument --init: expected a path, got ' '"),
        ([AT_TRH, "--out", "run", "--extra-data="], "argument --extra-data: expected a path, got ''"),
        ([AT_TRH, "--out", "run", "--microbatch=4"], "--microbatch=4. Did you mean --micro-batch"),
        ([*MIXED, "--extra-data", "nowhere.npz"], "--extra-data nowhere.npz: no such file"),
        ([*MIXED, "--extra-data", "torn.json"], "torn.json is no whole .npz file (File is not a zip file)"),
        ([*MIXED, "--extra-data", "half.npz"], "half.npz has no array label: found image; expected"),
        (["torn.json", "--out", "run"], "no valid JSON: it is cut off at its end, in line 1"),
        (["vit_micro2.digits_linf.at_awp", "--out", "run", "--zero", "3"], "has AWP, which scales every"),
        (
            [AT_TRH, "--out", "run", "--batch-size", "10", "--micro-batch", "3"],
            "the nearest that do: 1, 2, 5",
        ),
        ([AT_TRH, "--out", "run", "--max-steps", "0"], "expected a whole number of at least 1"),
    ],
)
def test_before_torch_is_loaded(subprocess_environment, tmp_path, arguments, words):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.pth").write_bytes(b"PK\x03\x04 and more")
    (tmp_path / "pointer.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    (tmp_path / "torn.json").write_text('{"base_name": ')
    with zipfile.ZipFile(tmp_path / "half.npz", "w") as file:
        file.writestr("image.npy", b"")
    before = sorted(tmp_path.rglob("*"))
    done = run(subprocess_environment, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_only_rank_zero_speaks(subprocess_environment, tmp_path):
    (tmp_path / "file").touch()
    refused = f"error: {tmp_path / 'file'} is a file; choose another --out\n"
    for rank, words in (("1", ""), ("0", refused)):
        launched = subprocess_environment | LAUNCHED | {"RANK": rank, "LOCAL_RANK": rank}
        done = run(launched, tmp_path, AT_TRH, "--out", "file")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", words)
    done = run(launched | {"RANK": "1"}, tmp_path, AT_TRH, "--out", "run", "--zero", "4")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize(
    "left_over", [{"RANK": "1"}, {"RANK": "x"}, LAUNCHED | {"RANK": "2", "LOCAL_RANK": "2"}]
)
def test_a_rank_left_over_from_a_launcher_silences_nothing(subprocess_environment, tmp_path, left_over):
    for arguments in (["nope"], [AT_TRH, "--out", "run", "--zero", "4"]):
        done = run(subprocess_environment | left_over, tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "") and "error: " in done.stderr
        assert "unset RANK and WORLD_SIZE for one process" in done.stderr


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"MASTER_ADDR": ""}, "the environment has RANK, as a launcher sets it, but no MASTER_ADDR"),
        ({"RANK": None, "LOCAL_RANK": ""}, "has WORLD_SIZE, as a launcher sets it, but no RANK, LOCAL_RANK"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a whole number"),
        ({"WORLD_SIZE": "0"}, "RANK is 0; expected a number below WORLD_SIZE, which is 0"),
    ],
)
def test_half_of_a_launchers_environment(monkeypatch, changed, words):
    for name, value in (LAUNCHED | {"RANK": "0", "LOCAL_RANK": "0"} | changed).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=words):
        check_environment()


def test_alone_or_wholly_launched(monkeypatch):
    for name in (*LAUNCHED, "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    check_environment()
    for name, value in (LAUNCHED | {"RANK": "1", "LOCAL_RANK": "1"}).items():
        monkeypatch.setenv(name, value)
    check_environment()


def test_good_usage_goes_on_to_torch(subprocess_environment, tmp_path):
    done = run(subprocess_environment, tmp_path, AT_TRH, "--out", "run")
    assert done.returncode == 1 and "import of torch halted" in done.stderr


def test_good_usage(tmp_path):
    save_file({"weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    check(parse([AT_TRH, "--out", str(tmp_path / "a/b"), "--init", str(tmp_path / "weights.safetensors")]))
    check(parse([JPEGS, "--out", str(tmp_path / "run"), "--data", str(tmp_path)]))


def test_the_run_folder_of_several_machines_is_the_first_ones_affair(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    job = parse([AT_TRH, "--out", str(tmp_path / "file")])
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    check(job)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunFolderError, match="is a file"):
        check(job)
