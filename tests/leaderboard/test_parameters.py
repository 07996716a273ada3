"""The number of parameters of a network that no row of the catalog knows is counted in its weights."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save_file

from robustzoo.leaderboard.rows import parameters_of
from robustzoo.registry import recipe

NAME = "resnet18.cifar10jpg_linf.at_base"


def test_counted_without_running_statistics(tmp_path):
    weights = {"fc.weight": (10, 4), "fc.bias": (10,), "bn.running_mean": (4,), "bn.running_var": (4,)}
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in weights.items()}, tmp_path / "model.safetensors"
    )
    made = recipe(NAME, {"architecture": "timm:resnet10t"})
    assert parameters_of(made, tmp_path) == 50
    assert parameters_of(made, None) is None and parameters_of(made, tmp_path / "absent") is None
    assert parameters_of(recipe(NAME), None) == 11_168_832 + 513 * 10
