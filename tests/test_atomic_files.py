"""Files and folders are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from robustzoo import atomic_files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_and_its_folders(tmp_path):
    atomic_files.write_text(tmp_path / "a" / "b" / "file", "é\n")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == "é\n".encode()
    (tmp_path / "plain").touch()
    assert (tmp_path / "a" / "b" / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert names(tmp_path / "a" / "b") == ["file"]


def test_an_old_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    atomic_files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)

    def fail(*_):
        assert len(names(tmp_path)) == 2  # the new content stands beside the old file, not in it
        raise OSError("no space left on device")

    monkeypatch.setattr(*((os, "fsync", fail) if call == "fsync" else (Path, "replace", fail)))
    with pytest.raises(OSError, match="no space"):
        atomic_files.write_text(path, "new")
    assert path.read_text() == "old" and path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file"]


@pytest.fixture(params=[True, False], ids=["exchange", "two renames"])
def exchange(request, monkeypatch) -> bool:
    """Whether the system can exchange two folders."""
    if not request.param:
        monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    elif not sys.platform.startswith("linux"):
        pytest.skip("only Linux exchanges two folders")
    return request.param


@pytest.mark.parametrize("old", [None, [], ["kept", "gone"]])
def test_a_folder_is_replaced_with_all_it_held(tmp_path, exchange, old):
    folder = tmp_path / "folder"
    if old is not None:
        folder.mkdir()
    for name in old or ():
        (folder / name).write_text("old")
    with atomic_files.staging_folder(folder) as staging:
        (staging / "kept").write_text("new")
        atomic_files.replace_folder(staging, folder)
    assert names(tmp_path) == ["folder"] and names(folder) == ["kept"]
    assert (folder / "kept").read_text() == "new"


def test_the_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, exchange):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("old")
    with pytest.raises(FileNotFoundError):
        atomic_files.replace_folder(tmp_path / "absent", folder)
    assert names(tmp_path) == ["folder"] and (folder / "file").read_text() == "old"


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch, exchange, moment):
    """Whatever was killed at the so-manyth rename or removal; the next writer sweeps what is left."""
    folder, calls = tmp_path / "folder", []
    folder.mkdir()
    (folder / "file").write_text("old")
    staging = tmp_path / ".folder.01234567.tmp"
    staging.mkdir()
    (staging / "file").write_text("new")

    def dying(function):
        def call(*arguments, **options):
            calls.append(function)
            if len(calls) >= moment:
                raise Killed
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dying(Path.replace))
        patched.setattr(atomic_files, "_exchange", dying(atomic_files._exchange))
        patched.setattr("shutil.rmtree", dying(shutil.rmtree))
        with suppress(Killed):
            atomic_files.replace_folder(staging, folder)
    assert not exchange or folder.is_dir()  # never without
    atomic_files.recover_folder(folder)
    assert (folder / "file").read_text() in ("old", "new") and names(folder) == ["file"]
    for left in set(names(tmp_path)) - {"folder"}:
        os.utime(tmp_path / left, (0, 0))
    with atomic_files.staging_folder(folder):
        pass
    assert names(tmp_path) == ["folder"]


def test_only_what_nobody_writes_any_more_is_swept(tmp_path):
    for name in (".file.01234567.tmp", ".file.76543210.tmp", ".file.tmp", ".other.01234567.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".file.76543210.tmp").touch()  # of a living process
    atomic_files.write_text(tmp_path / "file", "new")
    assert names(tmp_path) == [".file.76543210.tmp", ".file.tmp", ".other.01234567.tmp", "file"]


def test_a_full_disk_names_the_file(tmp_path):
    def full(place):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'file'}'"):
        atomic_files.write_by(tmp_path / "file", full)
    assert not list(tmp_path.iterdir())


def test_the_nearest_existing_place_decides_whether_a_folder_can_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert atomic_files.nearest_existing(Path("a/b/c")) == tmp_path
    assert atomic_files.nearest_existing(Path("file/x/y")) == tmp_path / "file"
    assert atomic_files.nearest_existing(tmp_path) == tmp_path
