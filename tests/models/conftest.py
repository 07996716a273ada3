"""A small random model and the folder it is stored in."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from robustzoo.models import PixelModel, pixel_model, write_folder
from robustzoo.registry import Recipe, recipe

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib leaves sys.path alone


@pytest.fixture(scope="session")
def small_recipe() -> Recipe:
    return recipe("vit_micro2.digits_linf.at_trh")


@pytest.fixture(scope="session")
def stored(tmp_path_factory, small_recipe) -> Path:
    """The folder of one model with fixed random weights; copy it before changing anything."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = pixel_model(small_recipe)
    folder = tmp_path_factory.mktemp("stored") / "model"
    write_folder(folder, model, small_recipe)
    return folder


@pytest.fixture
def folder(tmp_path, stored) -> Path:
    """A copy of `stored` to break."""
    return Path(shutil.copytree(stored, tmp_path / "model"))


@pytest.fixture
def small_model(small_recipe) -> PixelModel:
    """The model that `stored` holds, in eval mode, before it was stored."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pixel_model(small_recipe).eval()


@pytest.fixture
def digits() -> torch.Tensor:
    """Pixels (16, 1, 8, 8) in [0, 1]."""
    return torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
