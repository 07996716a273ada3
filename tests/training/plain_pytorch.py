"""Training by hand, for the engine to be compared with."""

from __future__ import annotations

import math

import torch

from robustzoo.data import TrainingOrder, augment, load_dataset
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.training.plan import make_plan


def plain_pytorch(arguments: list[str], seed: int = 0, parts: int = 1) -> dict[str, torch.Tensor]:
    """The same training as a user would write it by hand: no engine, the L2 term in the loss's gradient.

    parts: the batch is attacked in as many equal parts, as ranks or micro-batches do. Products of other
    shapes round differently, and where a gradient is all but zero, as at TRADES' start, rounding decides
    its sign.
    """
    plan = make_plan([*arguments, "--out", "unused"]).recipe
    objective, data = Objective(plan), load_dataset(plan.dataset, split="train")
    torch.manual_seed(seed)
    model = pixel_model(plan)
    parameters = list(model.parameters())
    moments = [torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters]
    order = TrainingOrder(len(data), plan.batch_size, seed)
    for step in range(plan.total_steps):
        if step < plan.warmup_steps:
            rate = plan.base_lr * (step + 1) / plan.warmup_steps
        else:
            part = (step - plan.warmup_steps) / (plan.total_steps - plan.warmup_steps)
            rate = plan.base_lr * (1 + math.cos(math.pi * part)) / 2
        epochs, ids = order.batch(step)
        x, y = (torch.stack([torch.as_tensor(data[i][k]) for i in ids.tolist()]) for k in (0, 1))
        x = augment(x, plan, seed, epochs, ids)
        chunks = zip(*(t.chunk(parts) for t in (x, y, epochs, ids)), strict=True)
        x_adv = torch.cat(
            [objective.attack(model, a, b, step=step, seed=seed, epochs=e, ids=i) for a, b, e, i in chunks]
        )
        features, settle = _features(model, [x, x_adv] if objective.needs_clean else [x_adv], parts)
        loss = objective.terms(features, model.head(features), y, step=step)["total"]
        gradients = torch.autograd.grad(loss, parameters)
        settle()
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        clip = min(1.0, plan.gradient_clipping / (norm + 1e-6))
        assert clip < 1, "clipping should be active, or its order with the L2 term is not tested"
        with torch.no_grad():
            for p, g, first, second in zip(parameters, gradients, *moments, strict=True):
                g = clip * g + objective.weight_decay * p
                if plan.optimizer == "sgd":
                    first.mul_(plan.momentum).add_(g)
                    p -= rate * first
                else:
                    first.mul_(plan.momentum).add_((1 - plan.momentum) * g)
                    second.mul_(0.999).add_(0.001 * g * g)
                    scale = (second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                    p -= rate * first / (1 - plan.momentum ** (step + 1)) / scale
    return model.network.state_dict()


def _features(model, sides: list[torch.Tensor], parts: int):
    """Features of these images (B, ...), side by side, and what is to be done after the backward
    pass. Batch norm sees every part of every side by itself; each part starts from the same statistics."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    if not layers:
        return model.features(torch.cat(sides)), lambda: None
    before = [(layer.running_mean.clone(), layer.running_var.clone()) for layer in layers]
    counted = [layer.num_batches_tracked.clone() for layer in layers]
    outputs, after = [[] for _ in sides], []
    for part in range(parts):
        for layer, (mean, variance) in zip(layers, before, strict=True):
            layer.running_mean, layer.running_var = mean.clone(), variance.clone()
        for layer, batches in zip(layers, counted, strict=True):  # each rank counts its own
            layer.num_batches_tracked = batches.clone()
        for side, output in zip(sides, outputs, strict=True):
            output.append(model.features(side.chunk(parts)[part]))
        after.append([(layer.running_mean, layer.running_var) for layer in layers])

    def settle() -> None:
        for layer, of_parts in zip(layers, zip(*after, strict=True), strict=True):
            means, variances = zip(*of_parts, strict=True)
            layer.running_mean, layer.running_var = sum(means) / parts, sum(variances) / parts

    return torch.cat([feature for output in outputs for feature in output]), settle


def largest_difference(a, b) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)
