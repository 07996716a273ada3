"""Results that others report, read from tables in the package: they have no Evidence here, and are never
mixed with results that have."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.registry.catalog import THREATS
from robustzoo.registry.paper import PROTOCOL, cells

_ROBUSTBENCH = Path(__file__).with_name("robustbench.csv")
# Of RobustBench's repository, whose folder model_info the table was read from.
ROBUSTBENCH_COMMIT = "78fcc9e48a07a861268f295a777b975f25155964"
_FILES = "https://github.com/RobustBench/robustbench/blob/{commit}/model_info/{dataset}/{norm}/{model}.json"
_NORMS = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class Reported:
    """One result as its source states it.

    Attributes:
        clean_percent, aa_percent: accuracy, clean and under `protocol`, in percent.
        lowest_percent: the lowest robust accuracy that the source knows of, other attacks included.
        method: of training, where the source names it in a word; else "".
        extra_data: "yes", "no", or "" where the source does not say.
        paper: a link to the publication, or ""; source: a link to, or the place of, these numbers.
    """

    name: str
    dataset: str
    threat_model: str
    architecture: str
    method: str
    clean_percent: float
    aa_percent: float
    lowest_percent: float
    protocol: str
    extra_data: str
    paper: str
    source: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": "reported", **vars(self)}


def from_the_paper() -> list[Reported]:
    """The paper's 120 results, the most robust first within a dataset and threat model."""
    source = "Wang et al. 2023 (CVPR), main table and tables of its appendix"
    found = [
        Reported(
            name=cell.name,
            dataset=cell.dataset,
            threat_model=str(THREATS[cell.dataset, cell.norm]),
            architecture=cell.architecture,
            method=f"{cell.loss}_{cell.defence}",
            clean_percent=cell.clean_percent,
            aa_percent=cell.aa_percent,
            lowest_percent=cell.aa_percent,
            protocol=PROTOCOL,
            extra_data="",
            paper="",
            source=source,
        )
        for cell in cells()
    ]
    return sorted(found, key=lambda r: (r.dataset, r.threat_model, -r.aa_percent, r.name))


def from_robustbench() -> list[Reported]:
    """RobustBench's entries for Linf and L2, the most robust first within a dataset and threat model."""
    with _ROBUSTBENCH.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [
        Reported(
            name=row["model"],
            dataset=row["dataset"],
            threat_model=row["threat_model"],
            architecture=row["architecture"],
            method="",
            clean_percent=float(row["clean_percent"]),
            aa_percent=float(row["aa_percent"]),
            lowest_percent=float(row["lowest_known_percent"]),
            protocol="AutoAttack",
            extra_data=row["extra_data"],
            paper=row["link"],
            source=_FILES.format(
                commit=ROBUSTBENCH_COMMIT,
                dataset=row["dataset"],
                norm=_NORMS[row["threat_model"].partition(":")[0]],
                model=row["model"],
            ),
        )
        for row in rows
    ]
    return sorted(found, key=lambda r: (r.dataset, r.threat_model, -r.lowest_percent, r.name))
