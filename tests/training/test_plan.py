"""Bad usage and finished runs: told before torch and DeepSpeed are loaded, and nothing is written."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import zipfile

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.training.__main__ import main
from robustzoo.training.launch import Launcher
from robustzoo.training.plan import make_plan
from robustzoo.training.run_folder import SCHEMA, RunFolder
from tests.training.small import AT_TRH, ROOT, small

# A program on a machine where importing torch fails.
PROGRAM = """
import runpy, sys
sys.modules |= {"torch": None, "timm": None, "numpy": None}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
JPEGS = "vit_ti4.cifar10jpg_linf.at_trh"
MIXED = [JPEGS, "--data", "full", "--set", "extra_data=ddpm", "--set", "extra_fraction=0.5"]
# What a launcher tells each of two processes of one machine, rank aside.
LAUNCHED = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
RANK = {rank: LAUNCHED | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1", "2")}


def program(environment, folder, *arguments, script="train"):
    """The script's exit code, and what it said on stderr."""
    command = [sys.executable, "-c", PROGRAM, str(ROOT / f"training/{script}.py"), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.stdout == ""
    return done.returncode, done.stderr


REFUSED = [
    (["--out", "file"], "file is a file"),
    (["--out", "file/run"], "file is a file"),
    (["--out", "full"], "not empty, and holds no run"),
    (["--resume"], "no run to resume"),
    (["--set", "trh_lamda=1"], "Did you mean trh_lambda"),
    (["--set", "attack_steps=many"], "expected a whole number"),
    (["--set", "base_lr"], "is not KEY=VALUE"),
    (["--set", "base_lr=high"], "base_lr"),
    (["--batch-size", "8", "--set", "batch_size=9"], "contradict each other"),
    (["--init", "nowhere"], "no such file"),
    (["--init", "full"], "no such file"),
    (["--init", "full/letter.txt"], "not a readable safetensors"),
    (["--init", "weights.pth"], "is a pickle"),
    (["--init", "pointer.safetensors"], "Git LFS pointer"),
    (["--data", "empty"], "need no data folder"),
    (["--data", "cifar10jpeg:empty"], "Did you mean cifar10jpg"),
    (["--batch-size", "1298"], "1,298 is more than the 1,297"),
    (["--batch-size", "10", "--micro-batch", "3"], "nearest that do: 1, 2, 5"),
    (["--out", ""], "argument --out: expected a path"),
    (["--data", ""], "argument --data: expected a path"),
    (["--init", " "], "argument --init: expected a path"),
    (["--extra-data="], "argument --extra-data: expected a path"),
    (["--extra-data", "half.npz"], "has no generated images"),
    (["--microbatch=4"], "Did you mean --micro-batch"),
    (["--max-steps", "0"], "at least 1, got '0'"),
    (["--micro-batch", "-4"], "micro-batch"),
    (["--seed", "1.5"], "whole number from 0"),
    (["--zero", "4"], "ZeRO stage 0, 1, 2 or 3, got '4'"),
    (["--zero", "x"], "ZeRO stage 0, 1, 2 or 3, got 'x'"),
]
REFUSED = [([AT_TRH, *flags], keyword) for flags, keyword in REFUSED] + [
    (["vit_micro2.digits_linf.at_thr"], "Did you mean"),
    (["vit_micro2.imagenet_linf.at_trh"], "does not go with imagenet"),
    (["nowhere.json"], "no recipe file"),
    (["torn.json"], "no valid JSON"),
    ([JPEGS], "needs its images"),
    ([JPEGS, "--data", "nowhere"], "no data at nowhere"),
    ([JPEGS, "--data", "empty"], "which is empty"),
    (MIXED, "trains on generated images too"),
    ([*MIXED, "--extra-data", "nowhere.npz"], "no such file"),
    ([*MIXED, "--extra-data", "torn.json"], "no whole .npz file"),
    ([*MIXED, "--extra-data", "half.npz"], "no array label"),
    (["vit_micro2.digits_linf.at_awp", "--zero", "3"], "AWP"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with what REFUSED names, to be in."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.pth").write_bytes(b"PK\x03\x04 and more")
    (tmp_path / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid 0\n")
    (tmp_path / "torn.json").write_text('{"base_name": ')
    with zipfile.ZipFile(tmp_path / "half.npz", "w") as file:
        file.writestr("image.npy", b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "keyword"), REFUSED)
def test_refused_in_words_and_nothing_is_written(here, arguments, keyword):
    before = sorted(here.rglob("*"))
    with pytest.raises((RobustzooError, KeyError)) as caught:
        make_plan(arguments)
    assert keyword in str(caught.value)
    assert sorted(here.rglob("*")) == before


def test_data_without_files_may_be_named():
    assert make_plan([AT_TRH, "--data", "digits"]).recipe == make_plan([AT_TRH]).recipe


def test_without_torch_and_by_rank_zero_alone(subprocess_environment, here):
    refused = 2, f"error: {here / 'file'} is a file; choose another --out\n"
    assert program(subprocess_environment, here, AT_TRH, "--out", "file") == refused
    assert program(subprocess_environment | RANK["0"], here, AT_TRH, "--out", "file") == refused
    assert program(subprocess_environment | RANK["1"], here, AT_TRH, "--out", "file") == (2, "")
    assert program(subprocess_environment | RANK["1"], here, AT_TRH, "--zero", "4") == (2, "")
    status, said = program(subprocess_environment, here, AT_TRH, "--out", "run")  # goes on to torch
    assert status == 1 and "import of torch halted" in said


@pytest.mark.parametrize("left_over", [{"RANK": "1"}, {"RANK": "x"}, RANK["2"]])
def test_a_rank_left_over_from_a_launcher_silences_nothing(subprocess_environment, tmp_path, left_over):
    status, said = program(subprocess_environment | left_over, tmp_path, "nope")
    assert status == 2 and "error: " in said and "unset RANK and WORLD_SIZE for one process" in said


@pytest.mark.parametrize(
    ("changed", "keyword"),
    [
        ({"MASTER_ADDR": ""}, "has RANK, as a launcher sets it, but no MASTER_ADDR"),
        ({"RANK": None, "LOCAL_RANK": ""}, "has WORLD_SIZE, as a launcher sets it, but no RANK, LOCAL_RANK"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a whole number"),
        ({"WORLD_SIZE": "0"}, "RANK is 0; expected a number below WORLD_SIZE, which is 0"),
    ],
)
def test_half_of_a_launchers_environment(monkeypatch, changed, keyword):
    for name, value in (RANK["0"] | changed).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(RobustzooError, match=keyword):
        Launcher.read()


def test_alone_or_wholly_launched(monkeypatch):
    for name in RANK["1"]:
        monkeypatch.delenv(name, raising=False)
    assert Launcher.read() == Launcher(0, 1, 0, 1)
    for name, value in RANK["1"].items():
        monkeypatch.setenv(name, value)
    assert Launcher.read() == Launcher(1, 2, 1, 2)


def test_the_run_folder_of_several_machines_is_the_first_ones_affair(here, monkeypatch):
    for name, value in RANK["0"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "4")
    make_plan([AT_TRH, "--out", "file"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RobustzooError, match="is a file"):
        make_plan([AT_TRH, "--out", "file"])


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (["nowhere"], "nowhere is not a run folder: it has no config.json; give the --out of a run"),
        (["begun"], "begun has no checkpoint; train first, or continue with --resume"),
        (["trained", "--best"], "trained has no validation yet, and so no best checkpoint; train on"),
        (["trained", "--bset"], "unrecognized arguments: --bset"),
    ],
)
def test_export_refuses_before_torch_is_loaded(subprocess_environment, tmp_path, arguments, keyword):
    for name in ("begun", "trained"):
        (tmp_path / name).mkdir()
        settings = {"schema": SCHEMA, "fixed": {}, "recipe": {}}
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
    trained = RunFolder(tmp_path / "trained")
    trained.writing(2).mkdir(parents=True)
    trained.commit(2)
    if arguments == ["nowhere"]:
        found = program(subprocess_environment, tmp_path, *arguments, script="export")
    else:  # the same
        found = program(subprocess_environment, tmp_path, "export", *arguments)
    assert found[0] == 2 and keyword in found[1]


def test_what_was_loaded_is_left_out_of_the_last_search():
    before = gc.get_freeze_count()
    try:
        with pytest.raises(SystemExit) as left:
            main(lambda: 3)
        assert left.value.code == 3 and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


COMMANDS = {
    "module": [sys.executable, "-m", "robustzoo.training"],
    "robustzoo": [sys.executable, "-m", "robustzoo", "train"],
    "launcher": ["deepspeed", "--num_accelerators", "1", "--module", "robustzoo.training"],
}


@pytest.mark.parametrize(
    "how", ["robustzoo", *(pytest.param(how, marks=pytest.mark.slow) for how in ("module", "launcher"))]
)
def test_an_installed_package_trains_without_a_checkout(subprocess_environment, tmp_path, how):
    environment = subprocess_environment | {"PYTHONPATH": str(ROOT)}
    port = ["--master_port", "29611"] if how == "launcher" else []
    first, *others = COMMANDS[how]
    command = [first, *port, *others, AT_TRH, *small(2), "--max-steps", "1", "--out", "run"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/model/model.safetensors").is_file()


def test_without_deepspeed_the_extra_is_named(subprocess_environment, tmp_path):
    code = "import sys; sys.modules['deepspeed'] = None; from robustzoo.cli import main; main()"
    command = [sys.executable, "-c", code, "train", AT_TRH, "--out", "run"]
    environment = subprocess_environment | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'robustzoo[train]'" in done.stderr
