"""The paper's sensitivity figure on digits: robust accuracy against the weight of the trace."""

from robustzoo.studies.lambda_sweep.runs import LAMBDAS, LOSSES, plan
from robustzoo.studies.lambda_sweep.sweep import run_sweep

__all__ = ["LAMBDAS", "LOSSES", "plan", "run_sweep"]
