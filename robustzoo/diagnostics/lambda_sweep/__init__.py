"""The paper's sensitivity figure on digits: robust accuracy against the weight of the trace."""

from robustzoo.diagnostics.lambda_sweep.planning import LAMBDAS, LOSSES, SweepError
from robustzoo.diagnostics.lambda_sweep.runs import run_sweep

__all__ = ["LAMBDAS", "LOSSES", "SweepError", "run_sweep"]
