"""attack(): adversarial images of one batch, and which of them fool the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustzoo.evaluation.evaluate import evaluate
from robustzoo.registry.threat_model import ThreatModel


class Attacked(NamedTuple):
    """images: float32 (N, C, H, W) in [0, 1] on the CPU: where the attack succeeded its point, else the image
    as it was. succeeded: bool (N,), the model is wrong at that image, for some even unattacked."""

    images: Tensor
    succeeded: Tensor


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat_model: str | ThreatModel | None = None,
    protocol: str = "apgd-ce",
    **options: Any,
) -> Attacked:
    """Look for a point within the threat model of each image that fools the model.

    Each returned point is in the ball and in [0, 1], and fools the model by a forward of its own. Verdicts
    are those of `evaluate` on the same images, which makes Evidence of them.

    Args:
        model: from pixels (N, C, H, W) in [0, 1] to logits (N, K), in eval mode.
        x, y: images, and their labels, integers (N,).
        threat_model: such as "linf:8/255"; default: the model's own. protocol: as of `evaluate`.
        options: others of `evaluate`: seed, micro_batch_size, workers, device, ...

    Raises: as `evaluate`.
    """
    evidence = evaluate(model, (x, y), threat_model, protocol, **{"progress": False, **options})
    images = x.detach().to("cpu", torch.float32, copy=True)
    found = evidence.witness_set
    if found is not None and len(found):
        images[torch.from_numpy(found.ids)] = torch.from_numpy(found.pixels)
    return Attacked(images, torch.tensor([not verdict.robust for verdict in evidence.verdicts]))
