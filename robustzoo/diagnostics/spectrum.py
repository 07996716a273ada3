"""Eigenvalues of a loss's Hessian: all of them where it is small, the extremes and the density elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from robustzoo.diagnostics.hessian import HessianError, LossHessian


def eigenvalues(hessian: LossHessian) -> Tensor:
    """All n eigenvalues, ascending, float64 (n,).

    Raises:
        HessianError: the Hessian is too large for a matrix.
    """
    return torch.linalg.eigvalsh(hessian.matrix().double())


def extreme_eigenvalues(hessian: LossHessian, k: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest and the k largest eigenvalues, each ascending, by implicitly restarted Lanczos.

    Exact where n <= 2 k + 1 or n <= 64; elsewhere to 1e-3 of the largest absolute value (float64: 1e-6).

    Raises:
        HessianError: k is below 1 or above n, or the iteration does not converge.
    """
    if not 1 <= k <= hessian.size:
        raise HessianError(f"k is {k}; expected 1..{hessian.size}, the number of parameters")
    if hessian.size <= max(2 * k + 1, 64):
        values = eigenvalues(hessian).numpy()
        return values[:k], values[-k:]
    start = _flat(hessian.signs(seed, 0))
    if not _product(hessian, start).any():
        return np.zeros(k), np.zeros(k)
    double = all(p.dtype == torch.float64 for p in hessian.variables.values())
    tolerance = 1e-6 if double else 1e-3
    try:
        reach = abs(_largest(lambda v: _product(hessian, v), start, 1, 0.1, "LM")[0])
        # ARPACK's tolerance is relative to the eigenvalue itself, which a cluster at 0 never meets: both ends
        # are looked for in matrices whose wanted eigenvalues are of the size of the largest.
        high = _largest(lambda v: reach * v + _product(hessian, v), start, k, tolerance) - reach
        low = reach - _largest(lambda v: reach * v - _product(hessian, v), start, k, tolerance)
    except ArpackNoConvergence as error:
        raise HessianError(
            f"Lanczos did not converge on {hessian.size:,} parameters ({error}); compute in float64"
        ) from error
    return np.sort(low), np.sort(high)


def _largest(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, k: int, tol: float, which: str = "LA"
) -> np.ndarray:
    operator = LinearOperator((len(start),) * 2, matvec=product, dtype=np.float64)
    return eigsh(operator, k=k, which=which, v0=start, tol=tol, return_eigenvectors=False)


def spectral_density(
    hessian: LossHessian, probes: int = 4, steps: int = 64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Stochastic Lanczos quadrature: nodes and weights of the distribution of the eigenvalues.

    The k-th moment of the distribution is about sum(weights * nodes**k); the weights sum to 1. With `steps`
    at least n the k-th moment of one probe is exactly z' H^k z / n.

    Args:
        probes: vectors of random signs, at least 1.
        steps: Lanczos steps for each, at least 1, with full re-orthogonalisation: steps vectors are kept.

    Returns:
        (nodes, weights), each (m,), nodes ascending; m is at most probes * steps.

    Raises:
        HessianError: an argument out of range.
    """
    if probes < 1 or steps < 1:
        raise HessianError(f"probes is {probes} and steps {steps}; expected at least 1 each")
    nodes, weights = [], []
    for probe in range(probes):
        diagonal, below = _lanczos(hessian, _flat(hessian.signs(seed, probe)), min(steps, hessian.size))
        values, vectors = eigh_tridiagonal(diagonal, below)
        nodes.append(values)
        weights.append(vectors[0] ** 2 / probes)
    order = np.argsort(np.concatenate(nodes), kind="stable")
    return np.concatenate(nodes)[order], np.concatenate(weights)[order]


def _lanczos(hessian: LossHessian, start: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal (m,) and off-diagonal (m - 1,) of the tridiagonal matrix, m <= steps."""
    basis = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    below: list[float] = []
    while True:
        image = _product(hessian, basis[-1])
        diagonal.append(float(image @ basis[-1]))
        if len(diagonal) == steps:
            break
        known = np.stack(basis)
        for _ in range(2):  # twice is enough for orthogonality to rounding
            image = image - known.T @ (known @ image)
        length = float(np.linalg.norm(image))
        if length <= 1e-10 * max(abs(value) for value in (*diagonal, *below, 1e-300)):
            break  # an invariant subspace: the quadrature is exact
        below.append(length)
        basis.append(image / length)
    return np.array(diagonal), np.array(below)


def _product(hessian: LossHessian, flat: np.ndarray) -> np.ndarray:
    pieces = torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float64).reshape(-1)).split(
        [p.numel() for p in hessian.variables.values()]
    )
    vector = {
        name: piece.view(p.shape).to(p)
        for (name, p), piece in zip(hessian.variables.items(), pieces, strict=True)
    }
    return _flat(hessian.product(vector))


def _flat(vector: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([v.detach().flatten() for v in vector.values()]).double().cpu().numpy()
