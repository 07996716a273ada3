"""One process without a launcher, decisions of rank 0, and tools that are missing."""

from __future__ import annotations

import os

import pytest
import torch

from training import processes
from training.refusals import REFUSALS


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


@pytest.mark.parametrize("missing", ["ninja", "c++", "my-compiler"])
def test_missing_tools_are_named(monkeypatch, missing):
    found = processes.shutil.which
    monkeypatch.setenv("CXX", "my-compiler" if missing == "my-compiler" else "c++")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(processes.sys, "platform", "linux")
    monkeypatch.setattr(
        processes.shutil, "which", lambda tool: None if tool == missing else found(tool) or tool
    )
    with pytest.raises(processes.MissingTool, match=f"^{missing.replace('+', '[+]')} not found.*ninja"):
        processes._check_compiler()


@pytest.mark.parametrize("name", ["TORCH_EXTENSIONS_DIR", "HOME"])
def test_no_place_for_what_is_compiled_is_named(monkeypatch, tmp_path, name):
    (tmp_path / "file").touch()
    monkeypatch.setattr(processes.sys, "platform", "linux")
    for other in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, str(tmp_path / "file/deep"))
    words = f"^cannot write in {tmp_path}/file/deep.*Set TORCH_EXTENSIONS_DIR to a folder that can be written"
    with pytest.raises(processes.NoBuildFolder, match=words):
        processes._check_build_folder()
    assert processes.NoBuildFolder in REFUSALS
    monkeypatch.setenv(name, str(tmp_path / "new/deep"))
    processes._check_build_folder()
    assert (tmp_path / "new/deep").is_dir()


@pytest.mark.parametrize(("given", "threads"), [(None, 2), ("7", 4)])
def test_cores_are_shared_among_the_ranks_of_a_host(monkeypatch, given, threads):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    processes._share_cores()
    assert asked == ([threads] if given is None else [])
