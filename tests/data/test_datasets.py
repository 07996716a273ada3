from __future__ import annotations

import pytest

from robustzoo.data import DataError, MissingData, load_dataset
from robustzoo.data.datasets import LOADERS
from robustzoo.registry.catalog import DATASETS


def test_every_data_set_of_the_catalog_has_a_loader():
    assert set(LOADERS) == set(DATASETS)


def test_digits_agree_with_the_catalog():
    spec = DATASETS["digits"]
    train, holdout, test = (load_dataset("digits", split=split) for split in ("train", "holdout", "test"))
    assert len(train) + len(holdout) == spec.train_size and len(test) == spec.test_size
    assert test.image_shape == (spec.channels, spec.image_size, spec.image_size)
    assert test.num_classes == spec.num_classes
    assert train.complete and holdout.complete and test.complete


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(DataError, match=r"'cifr10jpg'.*Did you mean cifar10jpg"):
        load_dataset("cifr10jpg")
    for key in (None, ["digits"]):
        with pytest.raises(DataError, match=r"the name of a data set is text, not .*There are: digits"):
            load_dataset(key)
    with pytest.raises(DataError, match=r"'val'.*train, holdout, test"):
        load_dataset("digits", split="val")


@pytest.mark.parametrize("key", sorted(set(LOADERS) - {"digits"}))
def test_missing_folders_say_what_is_expected_there(key, tmp_path):
    with pytest.raises(
        MissingData, match=r"data_root=DIR; .*--data-root DIR, in training --data DIR\).*source: "
    ):
        load_dataset(key)
    with pytest.raises(MissingData, match=r"no data at .*nowhere; expected .* a folder with "):
        load_dataset(key, tmp_path / "nowhere")
    with pytest.raises(MissingData, match=r"expected|needs"):
        load_dataset(key, tmp_path)
