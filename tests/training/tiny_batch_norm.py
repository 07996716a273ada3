"""A network with batch norm that is small enough for tests: a row of the catalog while they run."""

from __future__ import annotations

from robustzoo.registry.catalog import ARCHITECTURES, Architecture, Network

KEY = "wrn_tiny"
ROW = Architecture(
    KEY,
    "Wide ResNet 10-1",
    {8: Network("robustzoo_wide", {"depth": 10, "widening": 1}, width=64, body_parameters=77_200)},
    datasets=("digits",),
)


def add() -> None:
    """For a process of its own; a test gives the row back."""
    ARCHITECTURES[KEY] = ROW
