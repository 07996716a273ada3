"""SAM and ASAM, LIET's start and consistency, the log form of the bound, relative flatness: closed forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, softmax

from robustzoo.diagnostics.bound import Prior
from robustzoo.errors import RobustzooError
from robustzoo.models.architectures import build_for, layer_groups
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives import label_information
from robustzoo.objectives.extension import Seen
from robustzoo.objectives.losses import smoothed
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.sharpness import sam
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry import recipe
from tests.objectives.small import tiny_vit

AT, AT_TRH = "vit_micro2.digits_linf.at_base", "vit_micro2.digits_linf.at_trh"
LIET = {"attack_start": "label", "attack_steps": 1, "attack_step_ratio": 1, "attack_warmup_steps": 0}
LIET |= {"consistency_weight": 10, "label_smoothing": 0.4, "random_smoothing": True}


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_moves_along_the_gradient_by_rho(adaptive):
    weights, gradients = (
        [torch.tensor([3.0, 0.0]), torch.tensor([[-2.0]])],
        [
            torch.tensor([0.6, 0.1]),
            torch.tensor([[0.8]]),
        ],
    )
    moves = sam(0.5, adaptive).moves(weights, gradients)
    w, g, found = (torch.cat([part.flatten() for part in parts]) for parts in (weights, gradients, moves))
    t = w.abs() + 0.01 if adaptive else torch.ones(3)
    assert torch.allclose(found, 0.5 * t * t * g / (t * g).norm())
    assert (found / t).norm().item() == pytest.approx(0.5)
    assert not any(move.any() for move in sam(0.5, adaptive).moves(weights, [0 * g for g in gradients]))


def outputs(name: str, changes: dict, n: int = 12):
    """(objective, model, its terms at a quarter of the training) on random images."""
    made = recipe(name, changes)
    torch.manual_seed(0)
    objective, model = Objective(made), tiny_vit()
    torch.nn.init.normal_(model.head.weight, std=0.3)
    x, y, ids = torch.rand(n, 1, 8, 8), torch.arange(n) % 10, torch.arange(n)
    step = made.total_steps // 4 - 1
    pair = objective.attacked(model, x, y, step=step, seed=0, epochs=ids, ids=ids)
    out = objective.module(model)(objective.inputs(*pair))
    return objective, model, x, pair, objective.terms(*out[:2], y, step=step, head_square=out[2:])


@pytest.mark.parametrize("form", ["linear", "log", "relative"])
def test_forms_of_the_trace(form):
    changes = {"trh_form": form, "trh_schedule": "constant", "trh_lambda": 0.02, "trh_gamma": 0.005}
    objective, model, *_, terms = outputs(AT_TRH, changes)
    head = model.head.weight
    prior = Prior.of_recipe(0.02, 0.005)
    expected = {
        "linear": 0.02 * terms["trace"].item(),
        "log": prior.spherical_term(terms["trace"].item(), head.numel()),
        "relative": 0.02 * terms["trace"].item() * head.square().sum().item(),
    }[form]
    assert terms["trh"].item() == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(terms["trh"], head)
    assert gradient.abs().sum() > 0
    assert objective.recipe.digest != recipe(AT_TRH).digest or form == "linear"


def test_the_log_is_the_trace_where_the_prior_is_strong():
    terms = outputs(AT_TRH, {"trh_form": "log", "trh_schedule": "constant", "trh_gamma": 1e4})[-1]
    assert terms["trh"].item() == pytest.approx(0.01 * terms["trace"].item(), rel=1e-4)


def test_liet_starts_from_what_grey_images_show_of_the_label():
    objective, model, x, (start, x_adv), terms = outputs(AT, LIET)
    eps, y = 0.1, torch.arange(12) % 10
    grey = torch.full((10, 1, 8, 8), 0.5, requires_grad=True)
    model.eval()
    (gradient,) = torch.autograd.grad(cross_entropy(model(grey), torch.arange(10), reduction="sum"), grey)
    signs = eps * gradient.sign()[y]
    inside = (x > eps) & (x < 1 - eps)  # where nothing is clipped
    added, taken = ((start - x - side * signs).abs() < 1e-6 for side in (1, -1))
    for image in range(12):
        share = max((which[image] | ~inside[image]).float().mean().item() for which in (added, taken))
        assert share > 0.45, "half of the pixels at least"
    assert ((start - x).abs() <= eps + 1e-6).all() and ((x_adv - x).abs() <= eps + 1e-6).all()
    assert {"consistency"} <= terms.keys()
    assert torch.allclose(terms["total"], terms["robust"] + terms["consistency"])
    one, ids = torch.tensor([7]), torch.arange(12)
    alone = objective.attack(model, x[7:8], y[7:8], step=0, seed=0, epochs=ids[7:8], ids=one)
    assert torch.allclose(alone, x_adv[7:8], atol=1e-5)


def test_consistency_is_the_jensen_shannon_divergence_growing():
    torch.manual_seed(0)
    a, b = torch.randn(5, 4), torch.randn(5, 4)
    p, q = softmax(a, -1), softmax(b, -1)
    m = (p + q) / 2
    expected = 0.5 * ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)).mean()
    seen = Seen(b, b, a, a, torch.zeros(5, dtype=torch.int64), step=4)
    found = label_information.consistency(20.0, 100).terms(seen)["consistency"]
    assert found.item() == pytest.approx(20 * 0.05 * expected.item(), rel=1e-5)


def test_smoothing_in_random_parts():
    soft = smoothed(torch.tensor([1, 3]), 5, 0.4, random=True)
    assert torch.allclose(soft.sum(-1), torch.ones(2)) and torch.allclose(
        soft[[0, 1], [1, 3]], torch.tensor(0.6)
    )
    assert len(soft[0].unique()) == 5


def test_an_average_that_warms_up():
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    average = WeightAverage(module, 0.5, warmup=True)
    expected = 0.0
    for step in range(12):
        torch.nn.init.constant_(module.weight, step + 1.0)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * (step + 1.0)
    assert average.state()["weight"].item() == pytest.approx(expected, rel=1e-5)


def test_layers_have_rates_that_decay():
    model = pixel_model(recipe(AT))
    groups = layer_groups(model, 0.5)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert len(scales) == len(list(model.parameters())) == sum(len(group["params"]) for group in groups)
    assert scales[id(model.head.weight)] == 1.0
    blocks = [scales[id(block.attn.qkv.weight)] for block in model.network.blocks]
    assert blocks == [0.5**k for k in range(len(blocks), 0, -1)]
    assert scales[id(model.network.patch_embed.proj.weight)] == 0.5 ** (len(blocks) + 1)
    assert layer_groups(model, None)[0].keys() == {"params"}


def test_drop_path_is_timms():
    network = build_for(recipe(AT, {"drop_path": 0.3}))
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in network.blocks]
    assert rates == pytest.approx([0.3 * k / 3 for k in range(4)])
    with pytest.raises(RobustzooError, match="drop_path"):
        build_for(recipe("resnet_mini.cifar10jpg_linf.at_base", {"drop_path": 0.3}))


REFUSED = [
    (AT, {"trh_form": "log"}, "trh"),
    (AT_TRH, {"trh_form": "log", "trh_gamma": 0}, "trh_gamma"),
    (AT, {"swa_warmup": True}, "swa"),
    (AT, {"sam_adaptive": True}, "sam_rho"),
    ("vit_micro2.digits_linf.at_awp", {"sam_rho": 0.1}, "awp"),
    (AT, {"random_smoothing": True}, "label_smoothing"),
    ("vit_micro2.digits_linf.trades_base", {"consistency_weight": 1}, "loss at"),
    (AT, {"attack_start": "label", "threat_model": "l2:1"}, "linf"),
    (AT, {"drop_path": 1}, "below 1"),
    (AT, {"layer_decay": 0}, "above 0"),
]


@pytest.mark.parametrize(("name", "changes", "keyword"), REFUSED)
def test_recipes_that_are_refused(name, changes, keyword):
    with pytest.raises(RobustzooError, match=keyword):
        recipe(name, changes)
