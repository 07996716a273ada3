"""SAM and ASAM as a defence: the training gradient is taken where a step up the objective leads.

SAM (Foret et al. 2021) moves the weights w by rho g / |g|, with g the gradient of the objective at w and |g|
its norm over all weights. ASAM (Kwon et al. 2021) measures distances relative to the weights: with
T = |w| + 0.01, element by element, it moves w by rho T^2 g / |T g|.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robustzoo.objectives.extension import Defence

_ETA = 0.01  # keeps weights at 0 from standing still; source: the ASAM release


def sam(rho: float, adaptive: bool) -> Defence:
    """The defence of a distance rho > 0."""

    def moves(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        scales = [weight.detach().abs() + _ETA if adaptive else None for weight in weights]
        scaled = [g if t is None else t * g for t, g in zip(scales, gradients, strict=True)]
        norm = torch.stack([torch.linalg.vector_norm(part) for part in scaled]).norm()
        factor = rho / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        return [factor * (g if t is None else t * g) for t, g in zip(scales, scaled, strict=True)]

    return Defence(moves=moves)
