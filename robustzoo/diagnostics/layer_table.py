"""One table of a Hessian: a row per layer and one for the whole."""

from __future__ import annotations

from typing import Any

from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.spectrum import eigenvalues as all_eigenvalues
from robustzoo.diagnostics.spectrum import extreme_eigenvalues, spectral_density

COLUMNS = ("layer", "parameters", "trace", "standard_error", "method", "smallest", "largest")
SPECTRUM_COLUMNS = ("layer", "eigenvalue", "weight", "method")
ALL = "all"


def layer_table(
    hessian: LossHessian, *, probes: int = 32, seed: int = 0, exact_up_to: int = 1000, eigenvalues: int = 1
) -> list[dict[str, Any]]:
    """Traces and extreme eigenvalues per layer, last the row "all".

    A layer of at most `exact_up_to` parameters has its exact trace (standard_error 0), the others have
    Hutchinson's estimate. smallest, largest: `eigenvalues` of each, ascending, with spaces between.
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
        rows.append(_row(layer, block, trace, error, method, eigenvalues, seed))
    trace, error, method = whole.value, whole.standard_error, "hutchinson"
    if exact == len(rows):
        trace, error, method = sum(row["trace"] for row in rows), 0.0, "exact"
    rows.append(_row(ALL, hessian, trace, error, method, eigenvalues, seed))
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
            values = all_eigenvalues(block).tolist()
            weights, method = [1.0 / block.size] * block.size, "exact"
        else:
            nodes, shares = spectral_density(block, probes, steps, seed)
            values, weights, method = nodes.tolist(), shares.tolist(), "lanczos quadrature"
        for value, weight in zip(values, weights, strict=True):
            rows.append(dict(zip(SPECTRUM_COLUMNS, (layer, value, weight, method), strict=True)))
    return rows


def _row(
    layer: str, block: LossHessian, trace: float, error: float, method: str, k: int, seed: int
) -> dict[str, Any]:
    smallest, largest = ("", "")
    if k:
        ends = extreme_eigenvalues(block, min(k, block.size), seed)
        smallest, largest = (" ".join(f"{value:.6g}" for value in values) for values in ends)
    return {
        "layer": layer,
        "parameters": block.size,
        "trace": trace,
        "standard_error": error,
        "method": method,
        "smallest": smallest,
        "largest": largest,
    }
