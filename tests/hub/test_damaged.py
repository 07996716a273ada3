"""Damaged folders of strangers: refused with the reason, before torch is loaded where the files show it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import robustzoo
from robustzoo.hub.files import check_files

_LOAD = """
import json, resource, sys
import robustzoo
out = []
for name in sys.argv[1:]:
    try:
        robustzoo.load(name)
        said = "loaded"
    except robustzoo.errors.RobustzooError as error:
        said = str(error)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out.append([said, "torch" in sys.modules, used])
print(json.dumps(out))
"""


def loads(*folders) -> list:
    """What a fresh process says of each in turn, whether torch is loaded, and its peak memory (KiB)."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, *map(str, folders)],
        env=os.environ | {"PYTHONPATH": str(Path(robustzoo.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weights(change):
    def damage(folder):
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return damage


def config(**values):
    def damage(folder):
        document = json.loads((folder / "config.json").read_text())
        for key, value in values.items():
            part, _, name = key.partition("__")
            document[part][name] = value
        (folder / "config.json").write_text(json.dumps(document))

    return damage


def tensors(change):
    def damage(folder):
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n"
BY_FILES = {
    "truncated": (weights(lambda data: data[:-1000]), "is truncated"),
    "html": (weights(lambda data: b"<!DOCTYPE html><html>Log in</html>"), "is a page of a web site"),
    "pointer": (weights(lambda data: POINTER), "a pointer of Git LFS"),
    "huge header": (weights(lambda data: (2**62).to_bytes(8, "little") + data[8:]), "announce a header of"),
    "large header": (weights(lambda data: (10**8).to_bytes(8, "little") + bytes(10**8)), "announce a header"),
    "a million layers": (config(model_args__depth=10**6), "describes 1000000 layers"),
    "lists of layers": (config(model_args__layers=[10**6, 3]), "describes 1000007 layers"),
    "a billion units": (config(model_args__embed_dim=10**9), "model_args.embed_dim is 1000000000"),
    "a path": (config(pretrained_cfg__file="../../secret.pth"), "names '../../secret.pth'"),
}


def test_what_the_files_show_is_refused_before_torch_is_loaded(published, tmp_path):
    folders = []
    for name, (change, _) in BY_FILES.items():
        change(folder := shutil.copytree(published, tmp_path / name))
        folders.append(folder)
    for (said, torch_loaded, _), (name, (_, words)) in zip(loads(*folders), BY_FILES.items(), strict=True):
        assert words in said and not torch_loaded, (name, said)


def test_a_flipped_byte_of_a_pinned_model_is_refused_before_torch_is_loaded(tmp_path, published):
    """By the hash alone; here in the package's own copy of a bundled model."""
    package = Path(robustzoo.__file__).parent
    copy = shutil.copytree(
        package, tmp_path / "robustzoo", ignore=shutil.ignore_patterns("__pycache__", "*witness*")
    )
    weights(lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])(
        copy / "bundled" / "vit_micro2.digits_linf.at_base"
    )
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, "vit_micro2.digits_linf.at_base"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    ((said, torch_loaded, _),) = json.loads(done.stdout)
    assert "is not the published file and was not used" in said and not torch_loaded


BY_SHAPES = {
    "wrong shape": (
        tensors(lambda held: held.update({"head.bias": torch.zeros(11)})),
        "head.bias has shape (11,)",
    ),
    "extra keys": (
        tensors(lambda held: held.update({f"extra.{i}": torch.zeros(2) for i in range(5)})),
        "does not have: extra.0",
    ),
    "other width": (config(model_args__embed_dim=96), "embed_dim is 96"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource")
def test_what_torch_must_tell_costs_no_more_memory_than_a_good_load(published, tmp_path):
    folders = [published]
    for name, (change, _) in BY_SHAPES.items():
        change(folder := shutil.copytree(published, tmp_path / name))
        folders.append(folder)
    good, *bad = loads(*folders)
    assert good[0] == "loaded"
    for (said, _, used), (name, (_, words)) in zip(bad, BY_SHAPES.items(), strict=True):
        assert words in said, (name, said)
        assert used - good[2] < 100 * 1024, name


def test_a_good_folder_is_none_of_these(published):
    check_files(published)
    for folder in (Path(robustzoo.__file__).parent / "bundled").iterdir():
        check_files(folder)
