"""Recipes, networks and batches small enough for the tests of the objectives."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from robustzoo.models import PixelModel, build_network
from robustzoo.registry import ThreatModel

AT = {"loss": "at", "attack_start": "uniform", "attack_loss": "ce"}
TRADES = {"loss": "trades", "attack_start": "gaussian", "attack_loss": "kl"}
ALP = {"loss": "alp", "attack_start": "uniform", "attack_loss": "ce"}
MART = {"loss": "mart", "attack_start": "gaussian", "attack_loss": "ce", "mart_bce_input": "adv"}
FOUR = (AT, TRADES, ALP, MART)
TRH = {"defences": ("trh",)}
S2O = {"defences": ("s2o",), "s2o_weight": 0.3, "s2o_diagonal": 0.4}
AWP = {"defences": ("awp",), "awp_delta": 0.05, "awp_warmup_steps": 0}


def make_recipe(*parts, **changes):
    """The fields an objective reads, with TrH values that are visible in every term."""
    fields = {
        "defences": (),
        "threat_model": ThreatModel.parse("linf:0.1"),
        "total_steps": 100,
        "l2_reg": 5e-4,
        "attack_steps": 5,
        "attack_warmup_steps": 0,
        "attack_step_ratio": 2.5,
        "loss_weight": 6.0,
        "mart_bce_input": None,
        "s2o_weight": None,
        "s2o_diagonal": None,
        "awp_delta": None,
        "awp_warmup_steps": None,
        "label_smoothing": 0.0,
        "loss_stop_gradient": False,
        "trh_lambda": 0.3,
        "trh_schedule": "constant",
        "trh_gamma": 1e-3,
        "trh_stop_gradient": True,
        "trh_form": "linear",
        "random_smoothing": False,
        "consistency_weight": 0.0,
        "sam_rho": None,
    }
    for part in parts:
        fields |= part
    return SimpleNamespace(**(fields | changes))


def tiny_vit() -> PixelModel:
    torch.manual_seed(0)
    return PixelModel(build_network("vit_micro2", 8, 1, 10), (0.3,), (0.37,))


class TwoLayers(nn.Module):
    """Pixels (B, 6) to features (B, 4) to logits (B, 3), in float64 and without a bias at the top."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).double()
        self.head = nn.Linear(4, 3, bias=False).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def batch():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(5, 6, generator=generator, dtype=torch.float64)
    x_adv = (x + 0.3 * torch.randn(5, 6, generator=generator, dtype=torch.float64)).clamp(0, 1)
    return x, x_adv, torch.tensor([0, 2, 1, 1, 0])
