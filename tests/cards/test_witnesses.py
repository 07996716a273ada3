"""Witness files: lossless on and off the 8-bit grid, the same bytes again, and strict on reading."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from robustzoo.cards import Witnesses
from robustzoo.cards.witnesses import round_to_uint8
from robustzoo.errors import RobustzooError


def make(
    n: int = 6, shape: tuple[int, int, int] = (2, 3, 5), on_grid: float = 0.5, seed: int = 0
) -> Witnesses:
    rng = np.random.default_rng(seed)
    pixels = rng.random((n, *shape), np.float32)
    chosen = rng.random(n) < on_grid
    pixels[chosen] = round_to_uint8(pixels[chosen])
    ids = np.sort(rng.choice(1000, n, replace=False)).astype(np.int64)
    return Witnesses(ids, pixels, rng.normal(size=n).astype(np.float32))


def same(a: Witnesses, b: Witnesses) -> bool:
    return all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in ((a.ids, b.ids), (a.pixels, b.pixels), (a.margins, b.margins))
    )


@settings(max_examples=30)
@given(
    n=st.integers(0, 9),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    on_grid=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_round_trip_is_lossless(tmp_path_factory, n, shape, on_grid, seed):
    path = tmp_path_factory.mktemp("witnesses") / "w.safetensors"
    made = make(n, shape, on_grid, seed)
    sha256 = made.save(path)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert same(Witnesses.load(path, sha256), made)


def test_every_grey_level_is_on_the_grid():
    levels = (np.arange(256, dtype=np.uint8).astype(np.float32) / np.float32(255)).reshape(1, 1, 16, 16)
    assert np.array_equal(round_to_uint8(levels), levels)
    one = Witnesses(np.zeros(1, np.int64), levels, np.zeros(1, np.float32))
    assert one.quantised.tolist() == [True]
    off = np.nextafter(levels, np.float32(0.5))
    assert Witnesses(one.ids, off, one.margins).quantised.tolist() == [False]


def test_points_on_the_grid_take_a_quarter_of_the_space(tmp_path):
    make(64, (1, 32, 32), on_grid=0.0).save(tmp_path / "float")
    make(64, (1, 32, 32), on_grid=1.0).save(tmp_path / "byte")
    assert (tmp_path / "byte").stat().st_size < 0.3 * (tmp_path / "float").stat().st_size


def test_equal_witnesses_give_equal_bytes_in_another_process(tmp_path):
    sha256 = make().save(tmp_path / "w")
    code = (
        "import sys; from robustzoo.cards import Witnesses; "
        "print(Witnesses.load(sys.argv[1]).save(sys.argv[1] + '2'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w")], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == sha256
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w", "w2"]


@pytest.mark.skipif(os.name == "nt", reason="no umask there")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_witness_file_has_the_permissions_of_any_other_and_the_bytes_of_save_file(tmp_path, umask):
    made, before = make(), os.umask(umask)
    try:
        made.save(tmp_path / "w")
    finally:
        os.umask(before)
    assert (tmp_path / "w").stat().st_mode & 0o777 == 0o666 & ~umask
    with safe_open(tmp_path / "w", "numpy") as stream:
        tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - no mapping
    save_file(tensors, tmp_path / "plain", metadata={"format": "pt"})
    assert (tmp_path / "w").read_bytes() == (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_file(tmp_path, keep):
    path = tmp_path / "w"
    make().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RobustzooError, match=r"truncated or corrupt.*robustzoo evaluate"):
        Witnesses.load(path)


def test_other_hash_names_both(tmp_path):
    path = tmp_path / "w"
    found = make().save(path)
    with pytest.raises(RobustzooError, match=f"{found}.*{'0' * 64}"):
        Witnesses.load(path, "0" * 64)


def test_another_number_of_witnesses_names_both(tmp_path):
    path, stored = tmp_path / "w", make()
    sha256 = stored.save(path)
    assert len(Witnesses.load(path, sha256, len(stored))) == len(stored)
    with pytest.raises(RobustzooError, match="witnesses, the evidence names 99; restore"):
        Witnesses.load(path, sha256, 99)


def test_a_file_larger_than_its_witnesses_is_refused_unread(tmp_path):
    path, stored = tmp_path / "w", make()
    sha256 = stored.save(path)
    assert len(Witnesses.load(path, sha256, len(stored), stored.image_shape)) == len(stored)
    with path.open("r+b") as file:
        file.truncate(2**35)  # takes no room, and would take 32 GB of memory
    with pytest.raises(RobustzooError, match="34,359,738,368 bytes or more"):
        Witnesses.load(path, sha256, len(stored), stored.image_shape)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Witnesses.load(tmp_path / "w")


def layout(**changes) -> dict[str, np.ndarray]:
    arrays = {
        "ids_uint8": np.array([1], np.int64),
        "pixels_uint8": np.zeros((1, 1, 2, 2), np.uint8),
        "margins_uint8": np.zeros(1, np.float32),
        "ids_float32": np.array([2], np.int64),
        "pixels_float32": np.zeros((1, 1, 2, 2), np.float32),
        "margins_float32": np.zeros(1, np.float32),
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"ids_uint8": None},
        {"extra": np.zeros(1, np.float32)},
        {"pixels_uint8": np.zeros((1, 1, 2, 2), np.float32)},
        {"pixels_uint8": np.zeros((1, 4), np.uint8)},
        {"pixels_uint8": np.zeros((1, 1, 3, 3), np.uint8)},
        {"margins_float32": np.zeros(2, np.float32)},
        {"margins_float32": np.array([np.nan], np.float32)},
        {"ids_float32": np.array([1], np.int64)},
        {"ids_float32": np.array([-1], np.int64)},
        {"pixels_float32": np.full((1, 1, 2, 2), 1.5, np.float32)},
        {"pixels_float32": np.full((1, 1, 2, 2), np.nan, np.float32)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_other_layouts_are_refused(tmp_path, changes):
    path = tmp_path / "w"
    save_file(layout(), path)
    assert Witnesses.load(path).ids.tolist() == [1, 2]
    save_file(layout(**changes), path)
    with pytest.raises(RobustzooError, match="not a witness file"):
        Witnesses.load(path)


def test_ids_must_ascend_and_arrays_agree():
    good = make()
    with pytest.raises(RobustzooError, match="ascending"):
        Witnesses(good.ids[::-1].copy(), good.pixels, good.margins)
    with pytest.raises(RobustzooError, match="margins"):
        Witnesses(good.ids, good.pixels, good.margins[:-1])
    with pytest.raises(RobustzooError, match=r"pixels.*float64"):
        Witnesses(good.ids, good.pixels.astype(np.float64), good.margins)
    with pytest.raises(RobustzooError, match="list"):
        Witnesses(good.ids.tolist(), good.pixels, good.margins)
