from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from robustzoo.data import DataError, DatasetSource, MissingData, TensorSource, load_dataset, open_data

X = torch.rand(5, 3, 4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 2, 1, 2, 0])


def test_tensors_and_datasets_give_the_same_items():
    pair, dataset = open_data((X, Y)), open_data(TensorDataset(X, Y))
    assert isinstance(pair, TensorSource) and isinstance(dataset, DatasetSource)
    for source in (pair, dataset):
        assert (len(source), source.image_shape, source.num_classes) == (5, (3, 4, 6), 3)
        for i, (x, label) in enumerate(source):
            assert torch.equal(x, X[i]) and type(label) is int and label == Y[i]


@pytest.mark.parametrize("wrap", [tuple, lambda pair: TensorDataset(*pair)], ids=["tensors", "dataset"])
@pytest.mark.parametrize(
    "x, y, message",
    [
        (X, Y.float(), "labels must be integer class ids"),
        (X, Y.bool(), "labels must be integer class ids"),
        (X * 255, Y, r"expected \[0, 1\]; pass pixels before normalisation"),
        (X - 0.5, Y, r"expected \[0, 1\]"),
        (X * float("nan"), Y, "NaN among the pixels"),
        (X.clamp(min=1 + 1e-7), Y, r"from 1\.0000001 to 1\.0000001, expected \[0, 1\]"),
        (X.double().clamp(min=1 + 1e-15), Y, r"from 1\.0000000000000\d+ to 1\.0000000000000\d+, expected"),
        (X * float("inf"), Y, "NaN|inf"),
        ((X * 255).byte(), Y, "for bytes, divide by 255"),
        (X, Y - 1, "label -1 of (image|item) 0 is negative; expected class ids from 0"),
        (X, Y * 0 - 1, "label -1 of (image|item) 0 is negative"),
        (X, Y + 1, "label 3 of (image|item) 1 is not in 0 to 2"),
        (X[:, 0], Y, "C, H, W"),
        (X[:0], Y[:0], "empty|length"),
    ],
)
def test_bad_data_is_refused(wrap, x, y, message):
    with pytest.raises(DataError, match=message):
        list(open_data(wrap((x, y)), num_classes=3))


def test_tensors_must_pair_up():
    with pytest.raises(DataError, match=r"labels must have shape \(5,\)"):
        TensorSource(X, Y[:4])
    with pytest.raises(DataError, match=r"labels must have shape \(5,\)"):
        TensorSource(X, torch.eye(5, dtype=torch.int64))
    with pytest.raises(DataError, match=r"expected two tensors.*got Tensor and list.*torch\.tensor"):
        open_data((X, [0, 1, 2, 3, 4]))
    with pytest.raises(DataError, match=r"got ndarray and ndarray; convert arrays with torch\.from_numpy"):
        open_data((X.numpy(), Y.numpy()))
    with pytest.raises(DataError, match="data has 3 parts; expected a pair"):
        open_data((X, Y, Y))


def test_what_holds_no_images_and_labels_is_told_what_is_taken():
    with pytest.raises(DataError, match=r"one Tensor of shape \(5, 3, 4, 6\); expected a pair of tensors"):
        open_data(X)
    with pytest.raises(DataError, match=r"one ndarray of shape .*made with torch\.from_numpy"):
        open_data(X.numpy())
    with pytest.raises(DataError, match=r"data is None; expected the name of a dataset, a folder"):
        open_data(None)
    with pytest.raises(DataError, match=r"data is a DataLoader; .*pass its \.dataset"):
        open_data(DataLoader(TensorDataset(X, Y)))
    with pytest.raises(DataError, match="have length 0"):
        open_data([])


def test_the_first_image_with_nan_is_named():
    x = X.clone()
    x[3, 0, 1, 2] = float("nan")
    with pytest.raises(DataError, match=r"images: NaN among the pixels, first in image 3; expected numbers"):
        TensorSource(x, Y)
    with pytest.raises(DataError, match="the image of item 3: NaN among the pixels"):
        list(DatasetSource(TensorDataset(x, Y)))


def test_a_data_folder_is_refused_where_none_is_needed(tmp_path):
    for data in ("digits", (X, Y), TensorDataset(X, Y), load_dataset("digits")):
        with pytest.raises(MissingData, match=r"no data at .*nowhere; .* need no data folder, so leave it"):
            open_data(data, tmp_path / "nowhere")
        with pytest.raises(DataError, match=r"would not be read: .* need no data folder, so leave it"):
            open_data(data, tmp_path)


def test_low_precision_becomes_float32_and_number_types_of_labels():
    assert TensorSource(X.half(), Y.to(torch.uint8))[0][0].dtype == torch.float32
    for label in (1, np.int64(1), torch.tensor([1]), torch.tensor(1)):
        assert DatasetSource([(X[0], label)])[0][1] == 1
    for label in (1.0, "1", True, np.float32(1)):
        with pytest.raises(DataError, match="item 0 has label"):
            DatasetSource([(X[0], label)])


def test_datasets_with_other_faults():
    with pytest.raises(DataError, match=r"item 1 has shape \(3, 4, 5\), item 0 has \(3, 4, 6\)"):
        list(DatasetSource([(X[0], 0), (X[0, :, :, :5], 0)]))
    with pytest.raises(DataError, match="item 0 is no pair"):
        DatasetSource([(X[0], 0, "extra")])
    with pytest.raises(DataError, match=r"must be a tensor.*got ndarray; add a ToTensor"):
        DatasetSource([(X[0].numpy(), 0)])
    with pytest.raises(DataError, match="a torch Dataset with a length"):
        open_data(iter([]))


def test_classes_of_a_dataset_are_kept():
    class Named(TensorDataset):
        classes = ("a", "b", "c", "d")

    assert DatasetSource(Named(X, Y)).classes == Named.classes
    assert DatasetSource(Named(X, Y), num_classes=10).num_classes == 10


def test_names_folders_and_data_sets(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 20)).save(tmp_path / name / "1.png")
    for folder in (tmp_path, str(tmp_path)):
        assert open_data(folder).classes == ("a", "b")
    with pytest.raises(DataError, match="data_root is given too; expected one folder"):
        open_data(tmp_path, tmp_path)
    digits = load_dataset("digits")
    assert open_data(digits) is digits
    assert len(open_data("digits", split="holdout")) == 150
    with pytest.raises(MissingData, match=r"no data at .*nowhere"):
        open_data(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"unknown data set 'digit'.*Did you mean digits"):
        open_data("digit")


def test_one_hot_labels_are_told_what_to_do():
    with pytest.raises(DataError, match=r"got \(2, 3\); of one-hot rows take .argmax\(1\)"):
        open_data((torch.rand(2, 3, 4, 4), torch.eye(3, dtype=torch.long)[:2]))
