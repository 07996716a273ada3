from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustzoo.data import cutmix
from robustzoo.keyed_noise import uniform

K = 5


def batch(n: int, height: int = 8, width: int = 8):
    """Image i is i / n everywhere, so that a pixel tells where it comes from."""
    x = (torch.arange(n) / n).view(n, 1, 1, 1).expand(n, 3, height, width).clone()
    return x, torch.arange(n) % K, torch.arange(n) // 30, torch.arange(n) + 100


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_a_box_of_the_next_image_and_labels_by_its_area(n, height, width, seed):
    x, y, epochs, ids = batch(n, height, width)
    before = x.clone()
    mixed, labels = cutmix(x, y, K, seed, epochs, ids)
    assert torch.equal(x, before) and mixed.shape == x.shape and mixed.dtype == x.dtype
    assert labels.shape == (n, K) and labels.dtype == torch.float32
    assert torch.allclose(labels.sum(1), torch.ones(n))
    for i in range(n):
        pasted = mixed[i, 0] != x[i, 0]
        assert torch.equal(mixed[i, 0], mixed[i, 2])
        assert (mixed[i, 0][pasted] == x[(i + 1) % n, 0, 0, 0]).all()
        rows, columns = pasted.any(1), pasted.any(0)
        assert torch.equal(pasted, rows[:, None] & columns)  # a box
        for side in (rows, columns):
            inside = side.nonzero()
            assert not len(inside) or inside[-1] - inside[0] + 1 == side.sum()  # in one piece
        if n > 1:
            expected = torch.zeros(K)
            share = pasted.float().mean()
            expected[y[i]] += 1 - share
            expected[y[(i + 1) % n]] += share
            assert torch.allclose(labels[i], expected, atol=1e-6)


def test_the_box_is_the_paper_s():
    """Sides are sqrt(1 - lambda) of the image's, cut off at the border, about a uniform centre."""
    n, height, width = 400, 32, 20
    x, y, epochs, ids = batch(n, height, width)
    mixed, _ = cutmix(x, y, K, 9, epochs, ids)
    drawn = uniform(9, ids, "data.cutmix", (3,), index=epochs).double()
    for i in range(n):
        pasted = mixed[i, 0] != x[i, 0]
        for axis, size in ((0, height), (1, width)):
            length = math.floor(drawn[i, 0].sqrt() * size)
            first = math.floor(drawn[i, 1 + axis] * size) - length // 2
            expected = [p for p in range(size) if first <= p < first + length]
            if pasted.any():
                assert pasted.any(1 - axis).nonzero().flatten().tolist() == expected
    areas = torch.linspace(0, 1, 11).tolist()
    below = [(drawn[:, 0] <= area).double().mean().item() for area in areas]
    assert max(abs(b - a) for a, b in zip(areas, below, strict=True)) < 1.63 / n**0.5  # Kolmogorov, 1 %


def test_boxes_depend_on_the_key_alone_and_partners_on_the_batch():
    x, y, epochs, ids = batch(12)
    whole, labels = cutmix(x, y, K, 4, epochs, ids)
    half, half_labels = cutmix(x[:6], y[:6], K, 4, epochs[:6], ids[:6])
    assert torch.equal(half[:5], whole[:5]) and torch.equal(half_labels[:5], labels[:5])
    assert torch.equal(half[5, 0] != x[5, 0], whole[5, 0] != x[5, 0])  # same box, another partner
    for changed in ((5, epochs, ids), (4, epochs + 1, ids), (4, epochs, ids + 1)):
        assert not torch.equal(cutmix(x, y, K, *changed)[0], whole)


def test_a_batch_of_one_keeps_image_and_label():
    x, y, epochs, ids = batch(1)
    mixed, labels = cutmix(x, y, K, 0, epochs, ids)
    assert torch.equal(mixed, x) and torch.equal(labels, torch.eye(K)[:1])


def test_pixels_stay_in_the_box():
    x = torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(0)).round()
    mixed, _ = cutmix(x, torch.zeros(64, dtype=torch.int64), 2, 0, torch.zeros(64).long(), torch.arange(64))
    assert set(mixed.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    "y, message",
    [
        (torch.tensor([0, 5]), r"in \[0, 5\), got 0 to 5"),
        (torch.tensor([-1, 0]), r"got -1 to 0"),
        (torch.tensor([0.0, 1.0]), r"one class id an image, \(2,\), got torch.float32"),
        (torch.zeros(2, 5), r"got torch.float32 \(2, 5\)"),
        (torch.tensor([0]), r"got torch.int64 \(1,\)"),
    ],
)
def test_labels_that_are_no_classes_are_refused(y, message):
    x, _, epochs, ids = batch(2)
    with pytest.raises(ValueError, match=message):
        cutmix(x, y, K, 0, epochs, ids)
