"""Errors that are the user's to mend: train.py prints their words and leaves with status 2, no traceback."""

from __future__ import annotations

from robustzoo.data import DataError, MissingData
from robustzoo.errors import RobustzooError
from robustzoo.objectives.objective import ObjectiveError
from robustzoo.registry import IncompatibleName, UnknownName
from robustzoo.training.export import ExportError
from robustzoo.training.launch import LaunchError
from robustzoo.training.processes import PortInUse, RefusedByRankZero
from robustzoo.training.run_folder import RunFolderError

REFUSALS = (
    DataError,
    ExportError,
    IncompatibleName,
    RobustzooError,
    LaunchError,
    MissingData,
    ObjectiveError,
    PortInUse,
    RobustzooError,
    RefusedByRankZero,
    RunFolderError,
    UnknownName,
)
