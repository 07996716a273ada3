from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import pad

from robustzoo.data import augment
from robustzoo.data.transforms import crop_box, random_crop, random_resized_crop, resized_crop

FB = SimpleNamespace(augmentation="fb", brightness=0.1)


@pytest.fixture
def images():
    return torch.rand(64, 3, 6, 5, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.25


def keys(n):
    return torch.arange(n) // 40, torch.arange(n) % 40


def test_none_is_the_identity(images):
    recipe = SimpleNamespace(augmentation="none", brightness=0.1)
    assert augment(images, recipe, 0, *keys(64)) is images


def test_fb_flips_half_and_shifts_within_the_bound(images):
    out = augment(images, FB, 0, *keys(64))
    shifts = out.mean((1, 2, 3)) - images.mean((1, 2, 3))
    plain = out - shifts.view(-1, 1, 1, 1)
    flipped = torch.tensor([torch.allclose(plain[i], images[i].flip(-1), atol=1e-5) for i in range(64)])
    kept = torch.tensor([torch.allclose(plain[i], images[i], atol=1e-5) for i in range(64)])
    assert (flipped ^ kept).all() and 20 <= flipped.sum() <= 44
    assert shifts.abs().max() <= 0.1 + 1e-6 and shifts.min() < -0.07 and shifts.max() > 0.07


def test_fb_stays_in_the_box_and_leaves_its_input_alone():
    x = torch.cat([torch.zeros(8, 1, 2, 2), torch.ones(8, 1, 2, 2)])
    before = x.clone()
    out = augment(x, FB, 3, *keys(16))
    assert torch.equal(x, before) and out.min() == 0 and out.max() == 1


def test_draws_depend_on_seed_epoch_and_id_only(images):
    epochs, ids = keys(64)
    whole = augment(images, FB, 7, epochs, ids)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(augment(images[order], FB, 7, epochs[order], ids[order]), whole[order])
    for i in (0, 63):
        one = slice(i, i + 1)
        assert torch.equal(augment(images[one], FB, 7, epochs[one], ids[one]), whole[one])
    assert not torch.equal(augment(images, FB, 8, epochs, ids), whole)
    assert not torch.equal(augment(images, FB, 7, epochs + 1, ids), whole)


def test_brightness_zero_only_flips(images):
    out = augment(images, SimpleNamespace(augmentation="fb", brightness=0.0), 0, *keys(64))
    same = (out == images).flatten(1).all(1) | (out == images.flip(-1)).flatten(1).all(1)
    assert same.all()


SHIFT = SimpleNamespace(augmentation="shift", brightness=0.0)


def test_shift_is_a_flip_and_a_crop_of_the_padded_image(images):
    out = augment(images, SHIFT, 0, *keys(64))
    assert out.shape == images.shape and out.dtype == images.dtype
    height, width = images.shape[2:]
    places = []
    for image, shifted in zip(images, out, strict=True):
        found = [
            (flip, top, left)
            for flip in (False, True)
            for top in range(9)
            for left in range(9)
            if torch.equal(
                pad(image.flip(-1) if flip else image, (4,) * 4)[:, top : top + height, left : left + width],
                shifted,
            )
        ]
        assert found
        places.append(found[0])
    assert {top for _, top, _ in places} == set(range(9)) == {left for _, _, left in places}


def test_shifts_depend_on_seed_epoch_and_id_only(images):
    epochs, ids = keys(64)
    whole = augment(images, SHIFT, 7, epochs, ids)
    assert torch.equal(augment(images[5:9], SHIFT, 7, epochs[5:9], ids[5:9]), whole[5:9])
    assert not torch.equal(augment(images, SHIFT, 8, epochs, ids), whole)
    assert not torch.equal(augment(images, SHIFT, 7, epochs + 1, ids), whole)


def test_unknown_augmentation_is_refused(images):
    with pytest.raises(ValueError, match="one of none, fb, crop, shift, got 'mixup'"):
        augment(images, SimpleNamespace(augmentation="mixup", brightness=0.0), 0, *keys(64))


def test_crops_cover_every_position():
    image = Image.new("L", (5, 6))
    image.putdata(range(30))
    corners = {random_crop(image, 3, 3, seed=0, epoch=e, sample=4).getpixel((0, 0)) for e in range(200)}
    assert corners == {5 * top + left for top in range(4) for left in range(3)}
    assert random_crop(image, 6, 5, 0, 0, 0).size == (5, 6)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_crop_boxes_lie_inside(height, width, seed, sample):
    top, left, h, w = crop_box(height, width, seed, 5, sample)
    assert 0 <= top <= top + h <= height and 0 <= left <= left + w <= width and h >= 1 and w >= 1


def test_crop_boxes_follow_torchvision_s_distribution():
    boxes = np.array([crop_box(400, 400, 0, 0, i) for i in range(1500)])
    area, ratio = boxes[:, 2] * boxes[:, 3] / 400**2, boxes[:, 3] / boxes[:, 2]
    assert 0.079 <= area.min() < 0.1 and area.max() <= 1 and 0.74 < ratio.min() < ratio.max() < 1.35
    # Where every part fits (small areas), ratio and place are not conditioned on fitting.
    small = area < 0.5
    assert abs(np.log(ratio[small]).mean()) < 4 * 0.166 / small.sum() ** 0.5
    place = boxes[small, 0] / (400 - boxes[small, 2])
    assert abs(place.mean() - 0.5) < 4 * 0.289 / small.sum() ** 0.5
    assert abs(area[small].mean() - 0.29) < 4 * 0.121 / small.sum() ** 0.5


def test_narrow_images_get_the_largest_central_part():
    assert crop_box(10, 1000, 0, 0, 0) == (0, 493, 10, 13)  # no part of 8 % of the area fits
    assert crop_box(1000, 9, 0, 0, 0) == (494, 0, 12, 9)


def test_crops_of_tensors_are_antialiased_parts(images):
    x = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    for sample in range(30):
        top, left, h, w = crop_box(24, 20, 1, 2, sample)
        out = random_resized_crop(x, 1, 2, sample)
        assert out.shape == x.shape and out.min() >= 0 and out.max() <= 1
        rows, columns = resampling(h, 24), resampling(w, 20)
        part = x[:, top : top + h, left : left + w].double()
        assert torch.allclose(out.double(), rows @ part @ columns.T, atol=1e-5)
    assert torch.equal(x, before)
    ones = torch.ones(3, 24, 20)
    assert all(random_resized_crop(ones, 0, 0, i).max() <= 1 for i in range(30))


def resampling(size: int, out: int) -> torch.Tensor:
    """Antialiased bilinear resampling as a matrix (out, size): a triangle as wide as the larger pixel."""
    scale = size / out
    centres = (torch.arange(out, dtype=torch.float64) + 0.5) * scale
    distance = (torch.arange(size) + 0.5 - centres[:, None]).abs() / max(scale, 1.0)
    weights = (1 - distance).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def test_crops_of_photographs_use_the_same_box():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    top, left, h, w = crop_box(50, 70, 3, 4, 5)
    expected = Image.fromarray(pixels[top : top + h, left : left + w]).resize(
        (32, 32), Image.Resampling.BILINEAR
    )
    out = resized_crop(Image.fromarray(pixels), 32, 32, 3, 4, 5)
    assert np.array_equal(np.asarray(out), np.asarray(expected))


def test_crop_only_flips_on_the_batch(images):
    crop = SimpleNamespace(augmentation="crop", brightness=0.0)
    out = augment(images, crop, 0, *keys(64))
    assert torch.equal(out, augment(images, SimpleNamespace(augmentation="fb", brightness=0.0), 0, *keys(64)))
    assert not torch.equal(out, images)
