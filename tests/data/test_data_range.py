"""Whatever range the network wants, data, epsilon and adversarial images stay in pixels of [0, 1]."""

from __future__ import annotations

import pytest
import torch

from robustzoo.data import load_dataset
from robustzoo.models import pixel_model
from robustzoo.objectives import Objective
from robustzoo.registry import recipe

RANGES = {"[-1,1]": (-1.0, 1.0), "[0,1]": (0.0, 1.0), "centered": (-0.47 / 0.25, 0.53 / 0.25)}


@pytest.mark.parametrize("name", ["vit_micro2.digits_linf.at_base", "vit_micro2.digits_linf.trades_base"])
@pytest.mark.parametrize("data_range", RANGES)
def test_epsilon_means_pixels_in_every_data_range(name, data_range):
    chosen = recipe(name, overrides={"data_range": data_range, "attack_warmup_steps": 0, "attack_steps": 3})
    torch.manual_seed(0)
    model, digits = pixel_model(chosen), load_dataset("digits", split="train")
    x = torch.stack([digits[i][0] for i in range(16)])
    y, ids = torch.tensor(digits.labels[:16]), torch.arange(16)
    x_adv = Objective(chosen).attack(model, x, y, step=0, seed=0, epochs=ids * 0, ids=ids)
    assert x_adv.min() >= 0 and x_adv.max() <= 1
    assert (x_adv - x).abs().amax((1, 2, 3)).sub(0.1).abs().max() < 1e-6  # all of 1/10, and no more

    seen = []
    model.network.patch_embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)]))
    expected = torch.tensor(RANGES[data_range])
    assert torch.allclose(seen[0].flatten(1)[:, 0], expected, atol=1e-6)
