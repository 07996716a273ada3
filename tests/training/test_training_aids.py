"""SAM against its own loop, single-step training, layer-wise rates and relative flatness in the engine."""

from __future__ import annotations

import json

import pytest
import torch

from robustzoo.data import TrainingOrder, load_dataset
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.losses import cross_entropy
from robustzoo.objectives.objective import Objective
from robustzoo.registry.digests import sha256_file
from robustzoo.training.plan import make_plan
from robustzoo.training.validation import Validation
from tests.training.plain_pytorch import largest_difference
from tests.training.small import AT_TRH, SGD, small

AT = "vit_micro2.digits_linf.at_base"
MODEL = "model/model.safetensors"


def changes(**values) -> list[str]:
    return [item for key, value in values.items() for item in ("--set", f"{key}={value}")]


def written_out(arguments: list[str], rho: float, adaptive: bool) -> dict[str, torch.Tensor]:
    """The same training with SAM as its authors print it."""
    plan = make_plan([*arguments, "--out", "unused"]).recipe
    objective, data = Objective(plan), load_dataset("digits", split="train")
    torch.manual_seed(0)
    model = pixel_model(plan)
    weights, order = list(model.parameters()), TrainingOrder(len(data), plan.batch_size, 0)
    momenta = [torch.zeros_like(w) for w in weights]
    for step in range(plan.total_steps):
        epochs, ids = order.batch(step)
        x = torch.stack([data[i][0] for i in ids.tolist()])
        y = torch.tensor([data[i][1] for i in ids.tolist()])
        x_adv = objective.attack(model, x, y, step=step, seed=0, epochs=epochs, ids=ids)
        gradients = torch.autograd.grad(cross_entropy(model(x_adv), y).mean(), weights)
        with torch.no_grad():
            before = [w.clone() for w in weights]
            scales = [w.abs() + 0.01 if adaptive else torch.ones_like(w) for w in weights]
            norm = torch.cat([(t * g).flatten() for t, g in zip(scales, gradients, strict=True)]).norm()
            for w, t, g in zip(weights, scales, gradients, strict=True):
                w += rho * t * t * g / norm
        gradients = torch.autograd.grad(cross_entropy(model(x_adv), y).mean(), weights)
        rate = plan.base_lr * min(1, (step + 1) / plan.warmup_steps)
        with torch.no_grad():
            for w, old, m, g in zip(weights, before, momenta, gradients, strict=True):
                m.mul_(plan.momentum).add_(g + 2 * plan.l2_reg * old)
                w.copy_(old - rate * m)
    return model.network.state_dict()


@pytest.mark.parametrize(("adaptive", "stage"), [(False, "1"), (False, "0"), (True, "2")])
def test_sam_is_its_own_loop(train, tmp_path, weights, adaptive, stage):
    rho = 0.5 if adaptive else 0.05
    steps = changes(total_steps=3, warmup_steps=3, optimizer="sgd", base_lr=0.05, gradient_clipping=0)
    sam = changes(sam_rho=rho, sam_adaptive=str(adaptive).lower(), attack_steps=1, attack_warmup_steps=0)
    arguments = [AT, "--batch-size", "8", *steps, *sam, "--validate-every", "100"]
    assert train([*arguments, "--out", str(tmp_path / "run"), "--zero", stage]) == 0
    by_hand = written_out(arguments, rho, adaptive)
    assert largest_difference(weights(tmp_path / "run/model"), by_hand) < 1e-6
    assert train([*arguments, "--out", str(tmp_path / "other"), "--zero", "3"]) == 2


LIET = changes(attack_start="label", attack_step_ratio=1, consistency_weight=10, label_smoothing=0.4)
LIET += changes(random_smoothing="true", swa_decay=0.9, swa_warmup="true")


def test_single_steps_are_resumed_and_read_against_pgd(train, tmp_path):
    run = ["vit_micro2.digits_linf.at_swa", *small()]
    run[run.index("attack_steps=2")] = "attack_steps=1"
    run += LIET
    assert train([*run, "--out", str(tmp_path / "whole")]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--max-steps", "2"]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    assert sha256_file(tmp_path / "cut" / MODEL) == sha256_file(tmp_path / "whole" / MODEL)
    last = json.loads((tmp_path / "whole/metrics.jsonl").read_text().splitlines()[-1])
    assert {"fgsm_accuracy", "pgd10_accuracy", "consistency"} <= last.keys()


def test_a_collapse_is_noticed():
    reading = Validation.__new__(Validation)
    reading.holdout = range(1000)
    assert "catastrophic overfitting" in reading.collapse({"fgsm_accuracy": 0.8, "pgd10_accuracy": 0.1})
    assert reading.collapse({"fgsm_accuracy": 0.55, "pgd10_accuracy": 0.5}) is None
    assert reading.collapse({"pgd10_accuracy": 0.1}) is None
    reading.holdout = range(16)  # chance alone makes more than a difference of a fifth
    assert reading.collapse({"fgsm_accuracy": 0.4, "pgd10_accuracy": 0.2}) is None


def test_relative_flatness_is_scaled_under_accumulation(train, tmp_path, weights):
    """The norm of the head is an output of the engine's module, whose gradients DeepSpeed scales."""
    arguments = [
        AT_TRH,
        *small(),
        *SGD,
        *changes(trh_form="relative", trh_lambda=0.1, trh_schedule="constant"),
    ]
    for name, flags in (("whole", []), ("parts", ["--micro-batch", "2"])):
        assert train([*arguments, *flags, "--out", str(tmp_path / name)]) == 0
    assert largest_difference(weights(tmp_path / "whole/model"), weights(tmp_path / "parts/model")) < 1e-5
    assert train([*arguments, "--out", str(tmp_path / "three"), "--zero", "3"]) == 2


def test_adamw_with_rates_by_layer_on_every_stage(train, tmp_path, weights):
    arguments = [AT, *small(), *changes(optimizer="adamw", layer_decay=0.5, drop_path=0.1)]
    for stage in ("0", "2"):
        assert train([*arguments, "--zero", stage, "--out", str(tmp_path / stage)]) == 0
    assert largest_difference(weights(tmp_path / "0/model"), weights(tmp_path / "2/model")) < 1e-4
