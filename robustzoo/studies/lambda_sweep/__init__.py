"""The paper's sensitivity figure on digits: robust accuracy against the weight of the trace."""

from robustzoo.studies.lambda_sweep.planning import LAMBDAS, LOSSES, SweepError
from robustzoo.studies.lambda_sweep.runs import run_sweep

__all__ = ["LAMBDAS", "LOSSES", "SweepError", "run_sweep"]
