"""Eigenvalues of a loss's Hessian: all of them where it is small, the extremes and the density elsewhere; and
tables of them with a row per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.errors import RobustzooError

COLUMNS = ("layer", "parameters", "trace", "standard_error", "method", "smallest", "largest")
SPECTRUM_COLUMNS = ("layer", "eigenvalue", "weight", "method")
ALL = "all"


def eigenvalues(hessian: LossHessian) -> Tensor:
    """All n eigenvalues, ascending, float64 (n,).

    Raises:
        RobustzooError: the Hessian is too large for a matrix.
    """
    return torch.linalg.eigvalsh(hessian.matrix().double())


def extreme_eigenvalues(hessian: LossHessian, k: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest and the k largest eigenvalues, each ascending, by implicitly restarted Lanczos.

    Exact where n <= 2 k + 1 or n <= 64; elsewhere to 1e-3 of the largest absolute value (float64: 1e-6).

    Raises:
        RobustzooError: k is below 1 or above n, or the iteration does not converge.
    """
    if not 1 <= k <= hessian.size:
        raise RobustzooError(f"k is {k}; expected 1..{hessian.size}, the number of parameters")
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
        raise RobustzooError(
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
        RobustzooError: an argument out of range.
    """
    if probes < 1 or steps < 1:
        raise RobustzooError(f"probes is {probes} and steps {steps}; expected at least 1 each")
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


def layer_table(
    hessian: LossHessian, *, probes: int = 32, seed: int = 0, exact_up_to: int = 1000, extremes: int = 1
) -> list[dict[str, Any]]:
    """Traces and extreme eigenvalues per layer, last the row "all".

    A layer of at most `exact_up_to` parameters has its exact trace (standard_error 0), the others have
    Hutchinson's estimate. smallest, largest: `extremes` of each, ascending, with spaces between.
    """
    estimates, whole, _ = hessian.probe(probes, seed)
    rows, exact = [], 0
    for layer, size in hessian.sizes().items():
        block = hessian.of_layer(layer)
        found = estimates[layer]
        trace, error, method = found.value, found.standard_error, "hutchinson"
        if size <= exact_up_to:
            trace, error, method = sum(block.exact_traces().values()), 0.0, "exact"
            exact += 1
        rows.append(_row(layer, block, (trace, error, method), extremes, seed))
    trace, error, method = whole.value, whole.standard_error, "hutchinson"
    if exact == len(rows):
        trace, error, method = sum(row["trace"] for row in rows), 0.0, "exact"
    rows.append(_row(ALL, hessian, (trace, error, method), extremes, seed))
    return rows


def spectrum_table(
    hessian: LossHessian, *, probes: int = 4, steps: int = 64, seed: int = 0, exact_up_to: int = 1000
) -> list[dict[str, Any]]:
    """The spectrum of each layer's block and of the whole: eigenvalues and the share (weight) of each.

    Blocks of at most `exact_up_to` parameters have all their eigenvalues, the others the nodes of stochastic
    Lanczos quadrature with `probes` vectors and `steps` steps.
    """
    rows = []
    blocks = {layer: hessian.of_layer(layer) for layer in hessian.layers} | {ALL: hessian}
    for layer, block in blocks.items():
        if block.size <= exact_up_to:
            values = eigenvalues(block).tolist()
            weights, method = [1.0 / block.size] * block.size, "exact"
        else:
            nodes, shares = spectral_density(block, probes, steps, seed)
            values, weights, method = nodes.tolist(), shares.tolist(), "lanczos quadrature"
        for value, weight in zip(values, weights, strict=True):
            rows.append(dict(zip(SPECTRUM_COLUMNS, (layer, value, weight, method), strict=True)))
    return rows


def _row(
    layer: str, block: LossHessian, trace: tuple[float, float, str], k: int, seed: int
) -> dict[str, Any]:
    value, error, method = trace
    smallest, largest = ("", "")
    if k:
        ends = extreme_eigenvalues(block, min(k, block.size), seed)
        smallest, largest = (" ".join(f"{end:.6g}" for end in values) for values in ends)
    return {
        "layer": layer,
        "parameters": block.size,
        "trace": value,
        "standard_error": error,
        "method": method,
        "smallest": smallest,
        "largest": largest,
    }
