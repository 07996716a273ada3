"""The paper's result tables: 120 cells, the standard error of each, and its marks recomputed.

A mark compares one loss's five defences on one network, dataset and threat model: the highest robust
accuracy is the top, and silver is every other whose standard-error interval reaches the top's,
a_top - SE <= a + SE with SE = sqrt(0.25 / m) for m test images. Source: section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import sqrt

from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.paper import ARCHITECTURES, DEFENCES, LOSSES, read_table

TOP, SILVER = "top", "silver"
_DATASETS = ("cifar10", "cifar100", "imagenet")
_NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Cell:
    """One published result.

    Attributes:
        name: its registry name; `eps` as the paper prints it.
        clean_percent, aa_percent: accuracy, clean and under the paper's "AA", `paper.PROTOCOL`, in percent.
        table: "main" or "additional_...": the paper's tallies are over its main table.
        mark: "top", "silver" or "", recomputed from the numbers of its block.
    """

    name: str
    architecture: str
    dataset: str
    norm: str
    eps: str
    loss: str
    defence: str
    clean_percent: float
    aa_percent: float
    table: str
    mark: str

    @property
    def standard_error(self) -> float:
        """Largest standard error of an accuracy on this test set, in percent."""
        return 100 * sqrt(0.25 / DATASETS[self.dataset].test_size)


@lru_cache(maxsize=1)
def cells() -> tuple[Cell, ...]:
    """All 120 cells in the order of the printed tables: network, dataset, norm, loss, defence."""
    order = (ARCHITECTURES, _DATASETS, _NORMS, LOSSES, DEFENCES)
    keys = ("arch", "dataset", "norm", "loss", "defence")
    rows = read_table("results")
    rows.sort(key=lambda row: [choices.index(row[key]) for key, choices in zip(keys, order, strict=True)])
    blocks: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        blocks.setdefault(_block(row), []).append(row["aa_percent"])
    return tuple(
        Cell(
            name=f"{row['arch']}.{row['dataset']}_{row['norm']}.{row['loss']}_{row['defence']}",
            architecture=row["arch"],
            dataset=row["dataset"],
            norm=row["norm"],
            eps=row["eps"],
            loss=row["loss"],
            defence=row["defence"],
            clean_percent=float(row["clean_percent"]),
            aa_percent=float(row["aa_percent"]),
            table=row["table"],
            mark=_mark(row["aa_percent"], blocks[_block(row)], DATASETS[row["dataset"]].test_size),
        )
        for row in rows
    )


def tallies(of: Iterable[Cell]) -> dict[str, tuple[int, int]]:
    """Defence -> how often it is (top, silver) among these cells, in the order of the printed tables."""
    marks = [(cell.defence, cell.mark) for cell in of]
    return {defence: (marks.count((defence, TOP)), marks.count((defence, SILVER))) for defence in DEFENCES}


def _block(row: dict[str, str]) -> tuple[str, ...]:
    return row["arch"], row["dataset"], row["norm"], row["loss"]


def _mark(text: str, block: list[str], test_images: int) -> str:
    """In fractions, squared: at the edge a float would decide by its rounding."""
    value, best = Fraction(text), max(map(Fraction, block))
    if value == best:
        return TOP
    return SILVER if ((best - value) / 200) ** 2 <= Fraction(1, 4 * test_images) else ""
