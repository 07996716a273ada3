from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
import torch

from robustzoo.data import DataError, MissingData, load_dataset
from robustzoo.data.readers.digits import SPLIT_SIZES, drawn_split


def test_stored_split_is_the_drawn_one_and_covers_everything():
    stored = json.loads(files("robustzoo.data").joinpath("digits_split.json").read_text("utf-8"))
    assert stored == drawn_split()
    assert {split: len(ids) for split, ids in stored.items()} == SPLIT_SIZES
    assert SPLIT_SIZES == {"train": 1147, "holdout": 150, "test": 500}
    assert sorted(i for ids in stored.values() for i in ids) == list(range(1797))


@pytest.mark.parametrize("split", SPLIT_SIZES)
def test_items_are_the_scikit_learn_images(split):
    from sklearn.datasets import load_digits

    raw = load_digits()
    dataset = load_dataset("digits", split=split)
    ids = drawn_split()[split]
    assert len(dataset) == len(ids)
    for i in (0, 1, len(ids) - 1):
        x, label = dataset[i]
        assert x.dtype == torch.float32 and x.shape == (1, 8, 8) and type(label) is int
        assert torch.equal(x[0] * 16, torch.tensor(raw.images[ids[i]], dtype=torch.float32))
        assert label == raw.target[ids[i]] == dataset.labels[i]
    x[:] = 0.5
    assert not torch.equal(x, dataset[len(ids) - 1][0]), "items must not share memory with the data set"


@pytest.mark.parametrize("split", SPLIT_SIZES)
def test_classes_are_roughly_balanced(split):
    dataset = load_dataset("digits", split=split)
    counts = np.bincount(dataset.labels, minlength=dataset.num_classes)
    expected = len(dataset) / 10
    assert len(counts) == 10 and (np.abs(counts - expected) <= 3 * np.sqrt(expected)).all()


def test_positions_outside_are_refused_so_that_iteration_ends():
    dataset = load_dataset("digits", split="holdout")
    assert len(list(dataset)) == 150
    for i in (-1, 150):
        with pytest.raises(IndexError, match="0 to 149"):
            dataset[i]


def test_a_folder_for_digits_is_refused_since_none_is_read(tmp_path):
    with pytest.raises(DataError, match="digits come with scikit-learn and need no data folder"):
        load_dataset("digits", tmp_path)
    with pytest.raises(MissingData, match=r"no data at .*nowhere; digits come with scikit-learn"):
        load_dataset("digits", tmp_path / "nowhere")
