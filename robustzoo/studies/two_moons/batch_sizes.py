"""What the batch size, which the paper does not state, does to the study's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from robustzoo.diagnostics.results import write_csv
from robustzoo.errors import RobustzooError
from robustzoo.studies.two_moons.moons import EPOCHS, POINTS, SETTINGS, train
from robustzoo.studies.two_moons.study import SEEDS, check_arguments, in_processes
from robustzoo.studies.two_moons.traces import whole_traces

LAST = 10
COLUMNS = ("batch_size", "seed", "setting", "trace")
BATCHES = "two_moons_batches.csv"


@dataclass(frozen=True)
class BatchRow:
    """trace: of the whole network of one batch size, seed and setting, median over the last `LAST` epochs."""

    batch_size: int
    seed: int
    setting: str
    trace: float


def compare_batches(
    out: str | Path,
    batch_sizes: Sequence[int],
    *,
    seeds: Sequence[int] = SEEDS,
    epochs: int = EPOCHS,
    workers: int | None = None,
    on_run: Callable[[int, int], None] = lambda batch_size, seed: None,
) -> list[BatchRow]:
    """Train every setting with every batch size and seed and write two_moons_batches.csv into `out`.

    Args:
        batch_sizes: distinct divisors of 500, so that an epoch is a whole number of steps.
        seeds, epochs, workers: as in `run_study`.
        on_run: called with (batch size, seed) of each run as it is done.

    Returns:
        The rows of the file, by batch size and seed as given, then setting.

    Raises:
        RobustzooError: an argument out of range, or nothing can be written in `out`.
    """
    out = Path(out)
    check_arguments(out, seeds, epochs, workers)
    wrong = [size for size in batch_sizes if size < 1 or POINTS % size]
    if wrong or not batch_sizes or len(set(batch_sizes)) < len(batch_sizes):
        raise RobustzooError(
            f"batch sizes are {list(batch_sizes)}; expected divisors of the {POINTS} points, each once"
        )
    runs = [(size, seed) for size in batch_sizes for seed in seeds]
    found = {}
    for rows in in_processes(partial(_one_run, epochs=epochs), runs, workers):
        run = (rows[0].batch_size, rows[0].seed)
        found[run] = rows
        on_run(*run)
    rows = [row for run in runs for row in found[run]]
    write_csv(out / BATCHES, COLUMNS, [asdict(row) for row in rows])
    return rows


def _one_run(run: tuple[int, int], *, epochs: int) -> list[BatchRow]:
    batch_size, seed = run
    traces: list[list[float]] = []

    def at_the_end(epoch, network, x, y):
        if epoch > max(epochs - LAST, 0):
            traces.append(whole_traces(network, x, y, seed=seed, epoch=epoch).tolist())

    train(seed, epochs, at_the_end, batch_size=batch_size)
    columns = zip(SETTINGS, zip(*traces, strict=True), strict=True)
    return [BatchRow(batch_size, seed, setting, median(values)) for setting, values in columns]


def ratios(rows: Sequence[BatchRow]) -> dict[int, dict[str, float]]:
    """Batch size -> setting -> its trace relative to Standard's, of the medians over the seeds."""
    traces: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        traces.setdefault(row.batch_size, {}).setdefault(row.setting, []).append(row.trace)
    return {
        size: {setting: median(values) / median(of["Standard"]) for setting, values in of.items()}
        for size, of in traces.items()
    }


def batches_summary(rows: Sequence[BatchRow], epochs: int) -> str:
    """A line per batch size: each setting's median trace and its ratio to Standard's."""
    seeds = len({row.seed for row in rows})
    first = max(epochs - LAST, 0) + 1
    lines = [f"whole network, median of epochs {first} to {epochs}, then of {seeds} seeds:"]
    for size, of in ratios(rows).items():
        cells = []
        for setting, ratio in of.items():
            each = [row.trace for row in rows if (row.batch_size, row.setting) == (size, setting)]
            cells.append(f"{setting} {median(each):.4f} ({ratio:.2f})")
        lines.append(f"  batch size {size:>3}  " + "  ".join(cells))
    return "\n".join(lines)
