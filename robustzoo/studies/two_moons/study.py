"""All settings and seeds, the medians over the seeds, and the files: two tables and two figures."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from robustzoo import atomic_files
from robustzoo.diagnostics.results import write_csv
from robustzoo.errors import RobustzooError
from robustzoo.studies.two_moons import curves
from robustzoo.studies.two_moons.moons import EPOCHS, SETTINGS, train
from robustzoo.studies.two_moons.traces import ALL, Row, measure

SEEDS = (0, 1, 2, 3, 4)
PROBES = 16
COLUMNS = ("setting", "epoch", "layer", "trace", "eigenvalue_std")
SEED_COLUMNS = ("seed", *COLUMNS, "probe_std", "probe_relative_error", "robust_accuracy")
MEDIANS, PER_SEED = "two_moons.csv", "two_moons_seeds.csv"

T = TypeVar("T")
R = TypeVar("R")


def run_study(
    out: str | Path,
    *,
    seeds: Sequence[int] = SEEDS,
    epochs: int = EPOCHS,
    probes: int = PROBES,
    workers: int | None = None,
    on_seed: Callable[[int], None] = lambda seed: None,
) -> list[Row]:
    """Train and measure every setting for every seed and write tables and figures into `out`.

    Files: two_moons.csv (medians over the seeds), two_moons_seeds.csv (every seed, with the checks),
    two_moons_trace.png, two_moons_spectrum.png. The results do not depend on `workers`: a seed is the task of
    one process, on one thread. All seeds, 100 epochs: about 3 minutes on two cores.

    Args:
        seeds: distinct, each >= 0.
        epochs: at least 1; 100 in the paper.
        probes: Hutchinson probes of the check, at least 2.
        workers: processes; default: as many as cores, at most one per seed.
        on_seed: called with each seed as it is done.

    Returns:
        The rows of two_moons_seeds.csv, by seed, epoch and setting.

    Raises:
        RobustzooError: an argument out of range, or nothing can be written in `out`. Nothing is written on
            any error.
    """
    out = Path(out)
    check_arguments(out, seeds, epochs, workers)
    if probes < 2:
        raise RobustzooError(f"probes is {probes}; expected at least 2")
    rows = []
    for found in in_processes(partial(_one_seed, epochs=epochs, probes=probes), seeds, workers):
        rows += found
        on_seed(found[0].seed)
    places = {setting: i for i, setting in enumerate(SETTINGS)}
    rows.sort(key=lambda row: (row.seed, row.epoch, places[row.setting]))  # layers stay in their order
    medians = over_seeds(rows)
    write_csv(out / PER_SEED, SEED_COLUMNS, [row.record() for row in rows])
    write_csv(out / MEDIANS, COLUMNS, medians)
    curves.draw(out, rows)
    return rows


def check_arguments(out: Path, seeds: Sequence[int], epochs: int, workers: int | None) -> None:
    """Raises RobustzooError: nothing can be written in `out`, or another argument is out of range."""
    if (reason := atomic_files.why_unwritable(out)) is not None:
        raise RobustzooError(f"{reason}; give a folder for the tables and figures (--out DIR)")
    for name, value in (("epochs", epochs), ("workers", 1 if workers is None else workers)):
        if value < 1:
            raise RobustzooError(f"{name} is {value}; expected at least 1")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise RobustzooError(f"seeds are {list(seeds)}; expected at least one, each once and not negative")


def in_processes(task: Callable[[T], R], arguments: Sequence[T], workers: int | None) -> Iterator[R]:
    """task of each argument, as it is done, one thread each, in `workers` processes (None: one per core)."""
    workers = min(len(arguments), workers or os.cpu_count() or 1)
    task = partial(_on_one_thread, task)
    if workers == 1:
        yield from map(task, arguments)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(task, arguments)


def _on_one_thread(task: Callable[[T], R], argument: T) -> R:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return task(argument)
    finally:
        torch.set_num_threads(threads)


def _one_seed(seed: int, *, epochs: int, probes: int) -> list[Row]:
    rows: list[Row] = []
    train(
        seed,
        epochs,
        lambda epoch, network, x, y: rows.extend(measure(epoch, network, x, y, seed=seed, probes=probes)),
    )
    return rows


def over_seeds(rows: Sequence[Row]) -> list[dict[str, int | float | str]]:
    """Medians over the seeds of trace and eigenvalue_std, each by itself, in the rows' order."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.setting, row.epoch, row.layer), []).append(row)
    return [
        {
            "setting": setting,
            "epoch": epoch,
            "layer": layer,
            "trace": median(row.trace for row in group),
            "eigenvalue_std": median(row.eigenvalue_std for row in group),
        }
        for (setting, epoch, layer), group in groups.items()
    ]


def summary(rows: Sequence[Row]) -> str:
    """The last epoch in words: each setting's whole-network trace per seed, median, and ratio to Standard."""
    last = max(row.epoch for row in rows)
    final = [row for row in rows if row.epoch == last and row.layer == ALL]
    lines = [f"after epoch {last}, whole network (medians over {len({row.seed for row in final})} seeds):"]
    reference = median(row.trace for row in final if row.setting == "Standard")
    for setting in SETTINGS:
        chosen = [row for row in final if row.setting == setting]
        trace = median(row.trace for row in chosen)
        each = ", ".join(f"{row.trace:.4f}" for row in chosen)
        lines.append(
            f"  {setting:<8}  trace {trace:.4f} ({trace / reference:.2f} of Standard; seeds: {each})  "
            f"eigenvalue std {median(row.eigenvalue_std for row in chosen):.3e}  "
            f"robust accuracy {100 * median(row.robust_accuracy for row in chosen):.1f} %"
        )
    return "\n".join(lines)
