"""How the weight of the trace grows over a training."""

from __future__ import annotations

from collections.abc import Callable


def _constant(step: int, total_steps: int) -> float:
    return 1.0


def _linear(step: int, total_steps: int) -> float:
    """From 1 / total_steps in the first step to 1 in the last."""
    return (step + 1) / total_steps


def _multistep(step: int, total_steps: int) -> float:
    """0.01 before 10 % of the steps, 0.1 before 50 %, then 1; in integers, so that the edges are exact."""
    if 10 * step < total_steps:
        return 0.01
    return 0.1 if 2 * step < total_steps else 1.0


# Name -> (step, total steps) -> factor of lambda. Source: the paper's appendix on lambda schedules.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "multistep": _multistep,
}
