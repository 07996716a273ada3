"""The paper's numbers, read on demand from the tables in the package: hyper-parameters and published results.

Paper: "Improving Robust Generalization by Direct PAC-Bayesian Bound Minimization" (CVPR 2023). A mark in its
result tables compares one loss's five defences on one network, dataset and threat model: the highest robust
accuracy is the top, and silver is every other whose standard-error interval reaches the top's,
a_top - SE <= a + SE with SE = sqrt(0.25 / m) for m test images (section 4.2).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import sqrt
from pathlib import Path

from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.names import ModelName, parse

TABLES = Path(__file__).parent / "tables"

ARCHITECTURES = ("vit_b16", "vit_l16", "hybrid_l16")  # with results in the paper
LOSSES = ("at", "trades")
DEFENCES = ("base", "swa", "s2o", "awp", "trh")
# What the paper calls AutoAttack, "AutoPGD+AutoDLR" (section 4.1), by the name of our protocol: it tries less
# than aa-standard, whose numbers are therefore lower.
PROTOCOL = "apgd-ce+dlr"
TOP, SILVER = "top", "silver"
_DATASETS = ("cifar10", "cifar100", "imagenet")
_NORMS = ("linf", "l2")

# The paper's parameter -> our field. Parameters that are not here describe the network or a search.
_FIELD_OF = {
    "batch_size": "batch_size",
    "warmup_iterations": "warmup_steps",
    "optimizer": "optimizer",
    "base_lr": "base_lr",
    "decay_type": "lr_schedule",
    "l2_reg": "l2_reg",
    "data_aug": "augmentation",
    "downsample": "kernel_downsampling",
    "use_cutmix": "cutmix",
    "extra_data": "extra_data",
    "pgd_steps_train": "attack_steps",
    "lambda_t": "loss_weight",
    "lambda": "trh_lambda",
    "lambda_schedule": "trh_schedule",
    "gamma": "trh_gamma",
    "delta_awp": "awp_delta",
    "swa alpha": "swa_decay",
    "s2o alpha": "s2o_weight",
}
_SPELLING = {
    "sgd+momentum": "sgd",
    "fb (flip and random brightness)": "fb",
    "1M DDPM images (Gowal et al. 2021)": "ddpm",
}


@dataclass(frozen=True)
class Value:
    """One sourced value of one field, for all names that match its five keys ("*": any, "a;b": a or b)."""

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
        keys = (self.architecture, self.dataset, self.norm, self.loss)
        parts = (name.architecture, name.dataset, name.norm, name.loss)
        return (self.defence == "*" or self.defence in name.modifiers) and all(
            key == "*" or part == key or part in key.split(";") for key, part in zip(keys, parts, strict=True)
        )


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table in the package, such as `results`."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=1)
def hyperparameters() -> tuple[Value, ...]:
    """The paper's hyper-parameters (tables 3 to 6, appendix D) as values of recipe fields."""
    return tuple(map(_for_our_names, (*_shared_values(), *_method_values())))


def _shared_values() -> Iterator[Value]:
    for row in read_table("shared_hyperparameters"):
        field = _FIELD_OF.get(row["parameter"])
        if field:
            # Table 4 is of ViT-B16 and ViT-L16, and the first kernel that table 3 resamples is a ViT's.
            of_vits = row["source"] == "table 4" or field == "kernel_downsampling"
            arch = ";".join(ARCHITECTURES[:2]) if of_vits else "*"
            yield Value(arch, row["dataset"], "*", "*", "*", field, row["value"], row["source"])


def _method_values() -> Iterator[Value]:
    for row in read_table("method_hyperparameters"):
        parameter = row["parameter"]
        field = _FIELD_OF.get(f"{row['defence']} alpha" if parameter == "alpha" else parameter)
        if field:
            keys = (row["arch"], row["dataset"], row["norm"], row["loss"], row["defence"])
            yield Value(*keys, field, row["value"], row["source"])


def _for_our_names(value: Value) -> Value:
    """A row of the paper: what it says about a dataset holds for its own networks, not for others of ours."""
    arch, source = value.architecture, value.source
    if arch == "*" and source.startswith("tables"):  # the text says it of all networks, the tables of some
        source = "appendix D and " + re.sub(r"^tables (\d)$", r"table \1", source)
    if arch == "*" and value.dataset != "*":
        arch = ";".join(ARCHITECTURES)
    return replace(value, architecture=arch, source=source, value=_SPELLING.get(value.value, value.value))


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
    """Clean accuracy and that under the paper's "AA" (`PROTOCOL`), in percent as it prints them, or None
    where it does not.

    Raises:
        UnknownName: `name` is no model name.
    """
    parsed = parse(name)
    defence = "_".join(parsed.modifiers) or "base"
    loss = f"{parsed.loss}{parsed.loss_weight or ''}"
    return _results().get((parsed.architecture, parsed.dataset, parsed.norm, loss, defence))


@dataclass(frozen=True)
class Cell:
    """One published result.

    Attributes:
        name: its registry name; `eps` as the paper prints it.
        clean_percent, aa_percent: accuracy, clean and under the paper's "AA", `PROTOCOL`, in percent.
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
