"""The paper's numbers, read on demand from the tables in the package: hyper-parameters and published results.

Paper: "Improving Robust Generalization by Direct PAC-Bayesian Bound Minimization" (CVPR 2023).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from robustzoo.registry.names import ModelName, parse

TABLES = Path(__file__).parent / "tables"

# The paper's parameter -> our field. Parameters that are not here describe the network or a search.
_FIELD_OF = {
    "batch_size": "batch_size",
    "warmup_iterations": "warmup_steps",
    "optimizer": "optimizer",
    "base_lr": "base_lr",
    "decay_type": "lr_schedule",
    "l2_reg": "l2_reg",
    "data_aug": "augmentation",
    "pgd_steps_train": "attack_steps",
    "lambda_t": "trades_weight",
    "lambda": "trh_lambda",
    "lambda_schedule": "trh_schedule",
    "gamma": "trh_gamma",
}
_SPELLING = {"sgd+momentum": "sgd", "fb (flip and random brightness)": "fb"}


@dataclass(frozen=True)
class Value:
    """One sourced value of one field, for all names that match its five keys ("*": any)."""

    architecture: str
    dataset: str
    norm: str
    loss: str
    defence: str
    field: str
    value: str
    source: str

    def applies_to(self, name: ModelName) -> bool:
        """Whether the value is one of this name's recipe."""
        return (
            self.architecture in ("*", name.architecture)
            and self.dataset in ("*", name.dataset)
            and self.norm in ("*", name.norm)
            and self.loss in ("*", name.loss)
            and self.defence in ("*", *name.modifiers)
        )


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table in the package, such as `results`."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=1)
def hyperparameters() -> tuple[Value, ...]:
    """The paper's hyper-parameters (tables 3 to 6, appendix D) as values of recipe fields."""
    return tuple(_shared_values()) + tuple(_method_values())


def _shared_values() -> Iterator[Value]:
    for row in read_table("shared_hyperparameters"):
        field = _FIELD_OF.get(row["parameter"])
        for dataset in row["dataset"].split(";") if field else ():
            value = _SPELLING.get(row["value"], row["value"])
            yield Value("*", dataset, "*", "*", "*", field or "", value, row["source"])


def _method_values() -> Iterator[Value]:
    for row in read_table("method_hyperparameters"):
        field = _FIELD_OF.get(row["parameter"])
        if field:
            keys = (row["arch"], row["dataset"], row["norm"], row["loss"], row["defence"])
            yield Value(*keys, field, row["value"], row["source"])


@lru_cache(maxsize=1)
def _results() -> dict[tuple[str, ...], tuple[float, float]]:
    cells: dict[tuple[str, ...], tuple[float, float]] = {}
    for table in ("results", "results_extra"):
        for row in read_table(table):
            loss = row["loss"] + row.get("trades_lambda", "")
            key = (row["arch"], row["dataset"], row["norm"], loss, row["defence"])
            cells[key] = (float(row["clean_percent"]), float(row["aa_percent"]))
    return cells


def published_cell(name: str) -> tuple[float, float] | None:
    """Clean and AutoAttack accuracy in percent as the paper prints them, or None where it does not.

    Raises:
        UnknownName: `name` is no model name.
    """
    parsed = parse(name)
    defence = "_".join(parsed.modifiers) or "base"
    loss = f"{parsed.loss}{parsed.loss_weight or ''}"
    return _results().get((parsed.architecture, parsed.dataset, parsed.norm, loss, defence))
