"""One training step written out plainly, sample by sample, without any of the objectives' own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry import Recipe


class FeaturesAndLogits(nn.Module):
    """Pixels to penultimate features (B, d) and logits (B, K)."""

    def __init__(self, model: PixelModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        hook = self.model.head.register_forward_hook(lambda module, args, output: seen.append(args[0]))
        logits = self.model(x)
        hook.remove()
        return seen[0], logits


def step_gradient(made: Recipe, model: PixelModel, x: Tensor, x_adv: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of a step's loss for every weight, by name, at a lambda of `trh_lambda`. AWP climbs the
    loss without S2O and without the trace."""
    weights = {name: p.detach().clone().requires_grad_(True) for name, p in model.named_parameters()}
    if made.awp_delta is not None:
        loss, _ = losses(made, model, weights, x, x_adv, y, s2o=False)
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        for name in weights:
            if name.endswith("weight") and "norm" not in name:
                w, d = weights[name].detach(), gradients[name]
                v = made.awp_delta * w.square().sum().sqrt() / d.square().sum().sqrt() * d
                weights[name] = (w + v).requires_grad_(True)
    loss, trace = losses(made, model, weights, x, x_adv, y)
    if made.trh_lambda is not None:
        loss = loss + made.trh_lambda * trace()
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def losses(
    made: Recipe,
    model: PixelModel,
    weights: Mapping[str, Tensor],
    x: Tensor,
    x_adv: Tensor,
    y: Tensor,
    s2o: bool = True,
) -> tuple[Tensor, Callable[[], Tensor]]:
    """The mean robust loss at `weights`, and what gives the mean trace of its Hessian in the top layer."""
    named = {f"model.{name}": weight for name, weight in weights.items()}
    module = FeaturesAndLogits(model)
    f, g = functional_call(module, named, (x,))
    fa, ga = functional_call(module, named, (x_adv,))
    weight, bias = weights["network.head.weight"], weights["network.head.bias"]
    samples = range(len(y))

    def of_sample(i: int, g: Tensor, ga: Tensor, stop: bool, clean: Tensor) -> Tensor:
        return robust_loss(made, g, ga, int(y[i]), clean.detach() if stop else g.softmax(-1))

    def trace() -> Tensor:
        traces = []
        for i in samples:

            def of_weight(W: Tensor, i: int = i) -> Tensor:
                constant = g[i].softmax(-1)
                return of_sample(i, W @ f[i] + bias, W @ fa[i] + bias, made.trh_stop_gradient, constant)

            traces.append(hessian(of_weight)(weight).reshape(weight.numel(), weight.numel()).trace())
        return torch.stack(traces).mean()

    loss = torch.stack(
        [of_sample(i, g[i], ga[i], made.loss_stop_gradient, g[i].softmax(-1)) for i in samples]
    ).mean()
    if made.s2o_weight is not None and s2o:
        ce = torch.stack([-(g if made.loss == "trades" else ga)[i].softmax(-1)[y[i]].log() for i in samples])
        if made.loss == "mart":  # (1 - alpha) of the boosted cross-entropy: its margin too
            others = [
                torch.cat((sa[:k], sa[k + 1 :])) for sa, k in zip(ga.softmax(-1), y.tolist(), strict=True)
            ]
            ce = ce + torch.stack([-(1 - rest.amax()).log() for rest in others])
        halves = [second_order(logits, y, made.s2o_diagonal) for logits in (g, ga)]
        loss = loss + made.s2o_weight * (0.5 * sum(halves) - ce.mean())
    return loss, trace


def robust_loss(made: Recipe, g: Tensor, ga: Tensor, y: int, s: Tensor) -> Tensor:
    """The loss of one sample; s: the clean softmax that its second term compares with."""
    clean, sa = g.softmax(-1), ga.softmax(-1)
    if made.loss == "at":
        return -sa[y].log()
    if made.loss == "alp":
        return -sa[y].log() + made.loss_weight * ((s - sa) ** 2).sum()
    divergence = (s * (s.log() - sa.log())).sum()
    if made.loss == "trades":
        return -clean[y].log() + made.loss_weight * divergence
    others = torch.cat((sa[:y], sa[y + 1 :]))
    boosted = -(sa if made.mart_bce_input == "adv" else clean)[y].log() - (1 - others.amax()).log()
    return boosted + made.loss_weight * (1 - s[y]) * divergence


def second_order(logits: Tensor, y: Tensor, diagonal: float) -> Tensor:
    """The mean of KL(T[y] || s), T from the second moments of the logits, entry by entry."""
    z, classes = logits.detach(), range(logits.shape[1])
    divergences = []
    for i, label in enumerate(y.tolist()):
        likeness = [abs(float(sum(z[b, label] * z[b, k] for b in range(len(z))))) for k in classes]
        shares = [0.0 if k == label else max(likeness) - likeness[k] for k in classes]
        target = [(1 - diagonal) * share / sum(shares) for share in shares]
        target[label] = diagonal
        log_s = logits[i].softmax(-1).log()
        log_t = torch.tensor([t if t > 0 else 1.0 for t in target], dtype=z.dtype).log()
        divergences.append((torch.tensor(target, dtype=z.dtype) * (log_t - log_s)).sum())
    return torch.stack(divergences).mean()
