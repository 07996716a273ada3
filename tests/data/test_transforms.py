from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from robustzoo.data import augment
from robustzoo.data.transforms import random_crop

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


def test_unknown_augmentation_is_refused(images):
    with pytest.raises(ValueError, match="one of none, fb, crop, got 'mixup'"):
        augment(images, SimpleNamespace(augmentation="mixup", brightness=0.0), 0, *keys(64))


def test_crops_cover_every_position():
    image = Image.new("L", (5, 6))
    image.putdata(range(30))
    corners = {random_crop(image, 3, seed=0, epoch=e, sample=4).getpixel((0, 0)) for e in range(200)}
    assert corners == {5 * top + left for top in range(4) for left in range(3)}
    assert random_crop(image, 5, 0, 0, 0).size == (5, 5)
