"""The paper's two-moons study: what regularising the top layer's trace does to the whole network's."""

from robustzoo.studies.two_moons.batch_sizes import batches_summary, compare_batches
from robustzoo.studies.two_moons.study import run_study, summary

__all__ = ["batches_summary", "compare_batches", "run_study", "summary"]
