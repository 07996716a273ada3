"""What a network answers the attacks: logits, their mean over draws of a random network, and gradients.

A network that is random in its forward draws from torch's own generator, which we cannot key by sample: under
aa-rand the generator is seeded once for a run and put back afterwards (`seeded_draws`). The same run is then
the same again (same images in the same order, micro-batch, device and torch version). With other images
beside it, other workers, after an interruption, or where the model draws from a generator of its own, a
sample sees other draws, and its verdict may differ. All else of aa-rand, its starts for example, is keyed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustzoo.errors import RobustzooError


class NonFiniteLogits(RobustzooError):
    """A network that answered NaN or infinity for an image in [0, 1]."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        shown = ", ".join(map(str, ids[:10])) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
        super().__init__(
            f"the model gave NaN or infinite logits for sample {shown}; an attack on it means nothing. "
            "Check the weights and the precision of the model on these images"
        )


@contextmanager
def seeded_draws(seed: int, device: torch.device, draws: int) -> Iterator[None]:
    """Within the block torch's generators, of the CPU and `device`, start from `seed`; it leaves no trace.

    With one draw, as of a network that is not random, nothing is done.
    """
    if draws == 1:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def predict(model: nn.Module, x: Tensor, draws: int = 1) -> Tensor:
    """Logits (L, K) without any record for gradients; their mean over `draws` forwards of a random model.

    Not under inference mode, whose tensors never take part in a gradient again: a network that keeps a table
    from its first forward would be spoilt for its owner.
    """
    with torch.no_grad():
        logits = model(x)
        for _ in range(draws - 1):
            logits = logits + model(x)
        return logits if draws == 1 else logits / draws


def gradient(loss: Tensor, points: Tensor, keep: bool = False) -> Tensor:
    """d loss_i / d points_i for every lane, (L, C, H, W); zero where the loss does not depend on the
    points. keep: the graph, for another gradient."""
    if not loss.requires_grad:
        return torch.zeros_like(points)
    ones = torch.ones_like(loss)
    return torch.autograd.grad(loss, points, ones, retain_graph=keep, materialize_grads=True)[0]


def check_finite(logits: Tensor, ids: Tensor, active: Tensor) -> None:
    """Refuse NaN and infinite logits in lanes in use.

    Raises:
        NonFiniteLogits: naming the samples.
    """
    bad = ~logits.isfinite().all(1) & active
    if bad.any():
        raise NonFiniteLogits(sorted(ids[bad].tolist()))
