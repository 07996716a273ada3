"""The estimates of docs/training.md: operations as torch counts them, and the script's own table."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import training_estimates as estimates
from robustzoo.models import build_network
from robustzoo.registry import recipe
from tests.training.small import ROOT


@pytest.mark.parametrize("name", estimates.MODELS[:2])
def test_operations_of_a_forward_pass(name):
    plan = recipe(name)
    with torch.device("meta"):
        network = build_network(plan.architecture, plan.image_size, plan.channels, plan.num_classes)
        image = torch.empty(1, plan.channels, plan.image_size, plan.image_size)
    with FlopCounterMode(display=False) as counter:
        network(image)
    assert estimates.forward_flops(plan) == pytest.approx(counter.get_total_flops(), rel=0.002)  # the head


def test_time_and_memory():
    plan = recipe("vit_l16.imagenet_linf.trades_trh")
    passes = 12_800_000 * 21 * estimates.forward_flops(plan)
    assert estimates.hours(plan, 8, 100, 0.5) == pytest.approx(passes / (8 * 50e12) / 3600)
    one = [estimates.state_gigabytes(plan, 1, stage) for stage in (1, 2, 3)]
    assert one == pytest.approx([304_326_632 * 16 / 1e9] * 3)  # nothing to share
    many = [estimates.state_gigabytes(plan, 64, stage) for stage in (1, 2, 3)]
    assert many[2] == pytest.approx(one[2] / 64) and many[0] > many[1] > many[2]
    kept = estimates.activation_gigabytes(plan, 8)
    assert kept == pytest.approx(2 * 8 * 197 * 1024 * 24 * 34 / 1e9)
    assert estimates.activation_gigabytes(plan, 8, checkpointing=True) < kept / 5


def test_the_page_has_the_table():
    assert estimates.table() in (ROOT / "docs/training.md").read_text()
