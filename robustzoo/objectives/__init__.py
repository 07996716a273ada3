"""What is minimised: robust losses, traces of the Hessian, and the objective that puts them together."""

from robustzoo.objectives.objective import Objective, ObjectiveError

__all__ = ["Objective", "ObjectiveError"]
