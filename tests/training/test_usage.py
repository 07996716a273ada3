"""Bad usage: refused before torch and DeepSpeed are loaded, with status 2, and nothing is written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.training.small import AT_TRH, ROOT
from training.arguments import parse
from training.run_folder import RunFolderError
from training.usage import check

# train.py as a program, on a machine where importing torch or DeepSpeed fails.
PROGRAM = """
import runpy, sys
sys.modules |= {"torch": None, "deepspeed": None, "timm": None, "numpy": None}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
JPEGS = "vit_ti4.cifar10jpg_linf.at_trh"


def run(environment, folder, *arguments):
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "training/train.py"), *arguments]
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
    before = sorted(tmp_path.rglob("*"))
    done = run(subprocess_environment, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_only_rank_zero_speaks(subprocess_environment, tmp_path):
    launched = subprocess_environment | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    (tmp_path / "file").touch()
    done = run(launched, tmp_path, AT_TRH, "--out", "file")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_good_usage_goes_on_to_torch(subprocess_environment, tmp_path):
    done = run(subprocess_environment, tmp_path, AT_TRH, "--out", "run")
    assert done.returncode == 1 and "import of torch halted" in done.stderr


def test_good_usage(tmp_path):
    (tmp_path / "weights.safetensors").touch()
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
