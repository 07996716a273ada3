"""Errors that are the user's to mend: train.py prints their words and leaves with status 2, no traceback."""

from __future__ import annotations

from robustzoo.data import DataError, MissingData
from robustzoo.errors import RobustzooError
from robustzoo.models import ArchitectureError, FolderError
from robustzoo.models.initial import InitialWeightsError
from robustzoo.objectives.objective import ObjectiveError
from robustzoo.registry import IncompatibleName, UnknownName
from robustzoo.training.export import ExportError
from robustzoo.training.launch import LaunchError
from robustzoo.training.processes import PortInUse, RefusedByRankZero
from robustzoo.training.run_folder import RunFolderError

REFUSALS = (
    ArchitectureError,
    DataError,
    ExportError,
    FolderError,
    IncompatibleName,
    InitialWeightsError,
    LaunchError,
    MissingData,
    ObjectiveError,
    PortInUse,
    RobustzooError,
    RefusedByRankZero,
    RunFolderError,
    UnknownName,
)
