"""The paper's numbers, read on demand from the tables in the package: hyper-parameters and published results.

Paper: "Improving Robust Generalization by Direct PAC-Bayesian Bound Minimization" (CVPR 2023).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from robustzoo.registry.names import ModelName, parse

TABLES = Path(__file__).parent / "tables"

ARCHITECTURES = ("vit_b16", "vit_l16", "hybrid_l16")  # with results in the paper
LOSSES = ("at", "trades")
DEFENCES = ("base", "swa", "s2o", "awp", "trh")
# What the paper calls AutoAttack, "AutoPGD+AutoDLR" (section 4.1), by the name of our protocol: it tries less
# than aa-standard, whose numbers are therefore lower.
PROTOCOL = "apgd-ce+dlr"

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
    return tuple(_shared_values()) + tuple(_method_values())


def _shared_values() -> Iterator[Value]:
    for row in read_table("shared_hyperparameters"):
        field = _FIELD_OF.get(row["parameter"])
        if field:
            # Table 4 is of ViT-B16 and ViT-L16, and the first kernel that table 3 resamples is a ViT's.
            of_vits = row["source"] == "table 4" or field == "kernel_downsampling"
            arch = ";".join(ARCHITECTURES[:2]) if of_vits else "*"
            yield _value(arch, row["dataset"], "*", "*", "*", field, row["value"], row["source"])


def _method_values() -> Iterator[Value]:
    for row in read_table("method_hyperparameters"):
        parameter = row["parameter"]
        field = _FIELD_OF.get(f"{row['defence']} alpha" if parameter == "alpha" else parameter)
        if field:
            keys = (row["arch"], row["dataset"], row["norm"], row["loss"], row["defence"])
            yield _value(*keys, field, row["value"], row["source"])


def _value(
    arch: str, dataset: str, norm: str, loss: str, defence: str, field: str, text: str, source: str
) -> Value:
    """A row of the paper: what it says about a dataset holds for its own networks, not for others of ours."""
    if arch == "*" and source.startswith("tables"):  # the text says it of all networks, the tables of some
        source = "appendix D and " + re.sub(r"^tables (\d)$", r"table \1", source)
    if arch == "*" and dataset != "*":
        arch = ";".join(ARCHITECTURES)
    return Value(arch, dataset, norm, loss, defence, field, _SPELLING.get(text, text), source)


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
