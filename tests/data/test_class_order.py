"""Labels of class folders: by number where names differ in numbers, and said."""

from __future__ import annotations

import pytest

from robustzoo.data import DataError
from robustzoo.data.class_order import order_of, read_classes, stated_order


@pytest.mark.parametrize("start, before", [(0, ""), (1, ""), (0, "class"), (1, "Class_"), (0, "x y")])
def test_twelve_numbered_folders_keep_their_order(start, before):
    names = [f"{before}{i}" for i in range(start, start + 12)]
    order = order_of(sorted(names))
    assert [order.index[name] for name in names] == list(range(12))
    assert order.names == tuple(names) and f"11 = '{before}{start + 11}'" in order.text()
    assert "torchvision" in order.warning and "--classes FILE" in order.warning


@pytest.mark.parametrize(
    "names, outputs, index, warned",
    [
        (["cat", "dog"], None, [0, 1], ""),
        (["0", "3", "7"], None, [0, 3, 7], "taken for labels"),  # a gap: no places
        (["0", "3", "7"], 3, [0, 3, 7], "taken for labels"),  # and refused later, as 3 and 7 are no outputs
        ([str(i) for i in range(1, 10)], 10, list(range(1, 10)), "taken for labels"),
        ([str(i) for i in range(1, 11)], 10, list(range(10)), "torchvision"),
        ([str(i) for i in range(10)], 10, list(range(10)), ""),
        (["01", "02", "10"], None, [1, 2, 10], "taken for labels"),
        (["000", "001", "002"], None, [0, 1, 2], ""),
        (["1", "01"], None, None, ""),
        (["0", "99999999999"], None, [0, 1], "too large for labels"),
        (["a2", "a10", "b1"], None, [1, 0, 2], "by their numbers"),
        (["n01440764", "n02099712"], 2, [0, 1], ""),
        (["n01440764", "n02099712"], None, [0, 1], "synsets of ImageNet"),
        (["n01440764", "n02099712"], 1000, [0, 208], ""),
    ],
)
def test_labels_by_name(names, outputs, index, warned):
    order = order_of(names, outputs)
    if index is None:
        assert sorted(order.index.values()) == [0, 1]
    else:
        assert [order.index[name] for name in names] == index
    assert warned in order.warning and bool(warned) == bool(order.warning)


def test_a_file_of_classes_decides(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("dog\r\ncat\nbird\n\n", encoding="utf-8-sig")
    order = stated_order(["bird", "cat"], file)
    assert order.index == {"bird": 2, "cat": 1} and order.names == ("dog", "cat", "bird")
    file.write_text("n01\t5\tdog\nn02\t0\tcat\n")
    assert stated_order(["n01"], file).index == {"n01": 5}
    with pytest.raises(DataError, match=r"'birds' is not among the 2 names of .*classes.txt"):
        stated_order(["birds"], file)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is empty"),
        (b"cat\ncat\n", "line 2.*there already"),
        (b"cat\n\ndog\n", "line 2"),
        (b"cat\t1\ndog\t1\n", "line 2.*there already"),
        (b"cat\tone\n", "line 1"),
        (b"\xff\xfe\x00", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_list_of_classes(tmp_path, content, words):
    file = tmp_path / "classes.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_classes(file)
    with pytest.raises(DataError, match="no file"):
        read_classes(tmp_path)
