"""Into an app: from a photograph to pixels and from logits to words, as timm and our evaluations have it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

import robustzoo
from robustzoo.data import open_data
from robustzoo.data.description import describe_images
from robustzoo.data.fit import IMAGENET
from robustzoo.data.samples import open_samples
from robustzoo.errors import RobustzooError
from robustzoo.models.config import timm_config
from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.models.preprocessing import PixelTransform, preprocessing_of
from robustzoo.registry import recipe
from tests.own_images import CLASSES, write_flowers

NAME = "vit_micro2.digits_linf.trades_trh"


def photograph(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height))


def test_timm_reads_the_preprocessing_of_a_folder_as_the_model_has_it():
    model = robustzoo.load(NAME)
    network = timm.create_model(f"local-dir:{model.folder}", pretrained=True).eval()
    stated = resolve_model_data_config(network)
    assert stated["input_size"] == (1, 8, 8) and stated["crop_pct"] == 1.0
    image = photograph(40, 60).convert("L")
    normalised, pixels = create_transform(**stated)(image), model.transform()(image)
    assert pixels.dtype == torch.float32 and pixels.min() >= 0 and pixels.max() <= 1
    assert torch.allclose(normalised, model.normalise(pixels), atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(network(normalised[None]), model(pixels[None]), atol=1e-4)


def test_photographs_of_imagenet_become_what_evaluations_read():
    made = recipe("vit_b16.imagenet_linf.at_base")
    stated = preprocessing_of(made)
    image = photograph(300, 401)
    pixels = PixelTransform((3, 224, 224), stated)(image)
    ours = np.asarray(IMAGENET.apply(image, "a photograph"))
    assert torch.equal((255 * pixels).round().byte(), torch.from_numpy(ours.copy()).permute(2, 0, 1))
    network = torch.nn.Linear(1, 1)
    network.num_features, network.pretrained_cfg = 1, dict.fromkeys(("first_conv", "classifier"))
    network.pretrained_cfg["fixed_input_size"] = True
    assert stated.items() <= timm_config(made, network)["pretrained_cfg"].items()


def test_paths_bytes_and_images_are_taken_alike(tmp_path):
    transform = robustzoo.load(NAME).transform()
    image = photograph(20, 30)
    image.save(tmp_path / "x.png")
    file = io.BytesIO()
    image.save(file, "PNG")
    for given in (tmp_path / "x.png", str(tmp_path / "x.png"), file.getvalue()):
        assert torch.equal(transform(given), transform(image))


def test_grey_of_16_bits_keeps_its_shades(tmp_path):
    """Pillow's own conversion makes all above 255 white."""
    transform = robustzoo.load(NAME).transform()
    Image.fromarray(np.full((8, 8), 257 * 51, np.uint16)).save(tmp_path / "x.png")
    for given in (tmp_path / "x.png", Image.open(tmp_path / "x.png")):
        assert torch.allclose(transform(given), torch.tensor(0.2))


@pytest.mark.parametrize("size", [(8, 8), (20, 13), (64, 64)])
def test_a_transform_is_what_an_evaluation_of_a_folder_does(tmp_path, size):
    for label in range(2):
        (tmp_path / str(label)).mkdir()
        photograph(*size).save(tmp_path / str(label) / "x.png")
    for model in (
        robustzoo.load(NAME),
        robustzoo.load("resnet_mini.cifar10jpg_linf.at_base", pretrained=False),
    ):
        read = open_samples(f"folder:{tmp_path}", model)[0][0]
        assert torch.equal(model.transform()(tmp_path / "0" / "x.png"), read)


def test_own_images_are_taken_whole_and_named(tmp_path):
    flowers = write_flowers(tmp_path / "flowers")
    describe_images(flowers)[0].write(flowers / "dataset.json")
    made = recipe("resnet_mini.cifar10jpg_linf.at_base", {"dataset": flowers})
    model = pixel_model(made)
    model.recipe = made  # as of a folder that is loaded
    assert model.classes == CLASSES
    image = Image.open(flowers / "test" / CLASSES[0] / "0.png")
    assert torch.equal(model.transform()(image), open_data(flowers)[0][0])
    assert preprocessing_of(made) == {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "center"}


def test_names_of_classes():
    assert robustzoo.load(NAME).classes == tuple("0123456789")
    model = pixel_model(recipe("vit_mini4.cifar10jpg_linf.at_base"))
    assert model.classes == tuple("0123456789")  # nobody has said what it classifies
    model.recipe = recipe("vit_mini4.cifar10jpg_linf.at_base")
    assert model.classes[:2] == ("airplane", "automobile")


def test_a_model_without_a_size_has_no_transform():
    model = PixelModel(torch.nn.Linear(1, 1), [0.5], [0.5])
    with pytest.raises(RobustzooError, match="height, width"):
        model.transform()
