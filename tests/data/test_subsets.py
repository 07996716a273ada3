from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.data import DataError, TensorSource, evaluation_subset, load_dataset, pixel_digest
from robustzoo.data.subsets import training_rows


def numbered(n: int) -> TensorSource:
    return TensorSource(torch.arange(n).div(max(n, 2)).view(n, 1, 1, 1), torch.arange(n) % 3, num_classes=3)


@given(st.integers(2, 300), st.data())
def test_smaller_subsets_lie_in_larger_ones(total, data):
    small, large = sorted(data.draw(st.tuples(st.integers(1, total), st.integers(1, total))))
    seed = data.draw(st.integers(0, 2**64 - 1))
    dataset = numbered(total)
    inner, outer = (evaluation_subset(dataset, n, seed) for n in (small, large))
    assert len(inner) == small and set(inner.indices) <= set(outer.indices) <= set(range(total))
    assert inner.indices == sorted(set(inner.indices))
    assert inner == evaluation_subset(dataset, small, seed)


def test_names_and_the_whole_set():
    dataset = numbered(7)
    assert evaluation_subset(dataset).id == evaluation_subset(dataset, 7, seed=4).id == "all"
    assert evaluation_subset(dataset).indices == list(range(7))
    assert evaluation_subset(dataset, 3, seed=4).id == "n3-seed4"


def test_draws_are_pinned():
    """The subsets behind published numbers: a change of these values breaks every claim made on a subset."""
    subset = evaluation_subset(load_dataset("digits"), 5, seed=0)
    assert subset.indices == [33, 219, 229, 331, 433]
    assert subset.digest == "35753f382e41fc8dd89310821e3d2971c56180037d1029425fd7e9aa9fbc1036"


def test_every_image_is_drawn_equally_often():
    counts = np.zeros(20)
    for seed in range(2000):
        counts[evaluation_subset(numbered(20), 5, seed).indices] += 1
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500 * 0.75)


def test_digest_is_defined_by_bytes_and_not_by_access_order():
    dataset = load_dataset("digits", split="holdout")
    indices = [3, 7, 90]
    expected = hashlib.sha256()
    for i in indices:
        x, label = dataset[i]
        expected.update(x.numpy().astype("<f4").tobytes() + label.to_bytes(8, "little", signed=True))
    fresh = load_dataset("digits", split="holdout")
    for i in (90, 3, 149, 7):
        fresh[i]
    assert pixel_digest(fresh, indices) == pixel_digest(dataset, indices) == expected.hexdigest()


def test_digest_sees_one_pixel_one_label_and_the_order():
    x, y = torch.rand(4, 3, 5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    changed = x.clone()
    changed[2, 1, 3, 4] += 2.0**-20 if changed[2, 1, 3, 4] < 0.5 else -(2.0**-20)
    everything = range(4)
    digests = [
        pixel_digest(TensorSource(x, y), everything),
        pixel_digest(TensorSource(changed, y), everything),
        pixel_digest(TensorSource(x, y.flip(0)), everything),
        pixel_digest(TensorSource(x, y), [1, 0, 2, 3]),
    ]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("n", [0, -1, 8, 1.5, "3", True])
def test_sizes_outside_are_refused(n):
    with pytest.raises(DataError, match=f"n is {n!r}; expected a whole number from 1 to 7"):
        evaluation_subset(numbered(7), n)


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="seed is -1; expected"):
        evaluation_subset(numbered(7), 3, seed=-1)


@given(st.integers(10, 3000), st.integers(1, 200))
def test_train_and_holdout_cover_all_rows_once(n, holdout_size):
    train, holdout = (training_rows(n, split, holdout_size) for split in ("train", "holdout"))
    assert len(holdout) == min(holdout_size, n // 10)
    assert sorted([*train, *holdout]) == list(range(n)) and (np.diff(train) > 0).all()


def test_nothing_left_for_a_split():
    with pytest.raises(DataError, match="9 training images are too few for a holdout split"):
        training_rows(9, "holdout", 100)
