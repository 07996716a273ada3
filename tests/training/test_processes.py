"""One process without a launcher, decisions of rank 0, and a first start without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from robustzoo.training import processes
from robustzoo.training.launch import Launcher
from tests.training.small import AT_TRH, ROOT, small


@pytest.fixture
def group(train):
    return processes.start()


def test_a_single_process_needs_no_launcher(group):
    assert (group.rank, group.world_size, group.is_main) == (0, 1, True)
    assert {os.environ[name] for name in ("RANK", "LOCAL_RANK")} == {"0"}
    assert torch.equal(group.mean(torch.tensor([3.0])), torch.tensor([3.0]))


def test_rank_zero_decides_or_refuses(group):
    assert group.decide(lambda: {"step": 3}) == {"step": 3}

    def refuse():
        raise ValueError("the folder is in use")

    with pytest.raises(ValueError, match="the folder is in use"):
        group.decide(refuse)


def test_the_first_start_on_a_cpu_compiles_nothing(subprocess_environment, tmp_path):
    """No compiler, no ninja and no place to keep anything: minutes of silence, or an end, before."""
    (tmp_path / "file").touch()
    nowhere = dict.fromkeys(("TORCH_EXTENSIONS_DIR", "HOME", "XDG_CACHE_HOME"), str(tmp_path / "file/deep"))
    command = [
        sys.executable,
        str(ROOT / "training/train.py"),
        AT_TRH,
        *small(2),
        "--out",
        str(tmp_path / "run"),
    ]
    environment = subprocess_environment | nowhere | {"PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run/model/model.safetensors").is_file()
    assert "ninja" not in done.stdout + done.stderr and "built successfully" not in done.stdout


@pytest.mark.parametrize(("given", "threads"), [(None, 2), ("7", 4)])
def test_cores_are_shared_among_the_ranks_of_a_host(monkeypatch, given, threads):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    processes._share_cores(Launcher(0, 2, 0, 2))
    assert asked == ([threads] if given is None else [])
