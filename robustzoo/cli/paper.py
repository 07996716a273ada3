"""`robustzoo ls --paper`: the paper's results as its tables print them, with the marks recomputed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase

from robustzoo.cli.say import say
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.paper import LOSSES, PROTOCOL, SILVER, TOP, Cell, cells, published_cell, tallies

_SIGNS = {TOP: "*", SILVER: "+", "": " "}
_EXTRA = ("vit_l16.imagenet_linf.trades1_trh", "vit_l16.imagenet_l2.trades1_trh")


def show_results(pattern: str | None, *, as_json: bool) -> None:
    """Print the cells whose names match the shell pattern (None: all 120); marks are over all of them."""
    chosen = [cell for cell in cells() if pattern is None or fnmatchcase(cell.name, pattern)]
    if as_json:
        more = {"aa_protocol": PROTOCOL}
        records = [asdict(cell) | {"standard_error_percent": cell.standard_error} | more for cell in chosen]
        say(json.dumps(records, indent=1))
    elif not chosen:
        say(f"no result of the paper has a name like {pattern!r}; `robustzoo ls --paper` shows all 120")
    else:
        say(_page(chosen, whole=pattern is None))


def _page(chosen: Sequence[Cell], *, whole: bool) -> str:
    parts = []
    for image_size in sorted({DATASETS[cell.dataset].image_size for cell in chosen}):
        parts.append(_grid([cell for cell in chosen if DATASETS[cell.dataset].image_size == image_size]))
    parts.append(
        f"clean accuracy and that under {PROTOCOL} in percent, as printed. Of one loss in one column, * is\n"
        "the top robust accuracy and + a silver one: a_top - SE <= a + SE, SE = sqrt(0.25 / m), m images.\n"
        "The paper's AutoAttack is AutoPGD + AutoDLR, which tries less than aa-standard: no number of that."
    )
    if whole:
        parts.append(_tally_lines())
        parts.append("\n".join(_extra_lines()))
    return "\n\n".join(parts)


def _grid(chosen: Sequence[Cell]) -> str:
    """Networks, datasets and threat models across, losses and defences down."""
    columns = list(dict.fromkeys((c.architecture, c.dataset, c.norm, c.eps) for c in chosen))
    table = {(c.architecture, c.dataset, c.norm, c.loss, c.defence): c for c in chosen}
    rows = [
        ["", *(architecture for architecture, *_ in columns)],
        ["", *(dataset for _, dataset, *_ in columns)],
        ["", *(f"{norm} {eps}" for *_, norm, eps in columns)],
        ["SE", *(f"{_standard_error(chosen, dataset):.2f} %" for _, dataset, *_ in columns)],
        ["", *("clean, then" for _ in columns)],
        ["", *(PROTOCOL for _ in columns)],
    ]
    for loss in LOSSES:
        for defence in dict.fromkeys(c.defence for c in chosen if c.loss == loss):
            found = (table.get((a, d, n, loss, defence)) for a, d, n, _ in columns)
            rows.append([f"{loss}_{defence}", *(_text(cell) if cell else "" for cell in found)])
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        "  ".join([row[0].ljust(width), *(text.ljust(12) for text in row[1:])]).rstrip() for row in rows
    )


def _text(cell: Cell) -> str:
    return f"{cell.clean_percent:.1f}  {cell.aa_percent:.1f}{_SIGNS[cell.mark]}"


def _standard_error(chosen: Iterable[Cell], dataset: str) -> float:
    return next(cell.standard_error for cell in chosen if cell.dataset == dataset)


def _tally_lines() -> str:
    cifar = [c for c in cells() if c.table == "main" and c.dataset.startswith("cifar")]
    counts = tallies(cifar)
    return "CIFAR-10/100 in the paper's main table (vit_l16, hybrid_l16), top and silver:\n  " + ", ".join(
        f"{defence} {counts[defence][0]} and {counts[defence][1]}" for defence in reversed(counts)
    )


def _extra_lines() -> Iterable[str]:
    yield f"at lambda_t = 1 (section 4.2), clean and {PROTOCOL}:"
    for name in _EXTRA:
        clean, aa = published_cell(name) or (0.0, 0.0)
        yield f"  {name}  {clean:.1f}  {aa:.1f}"
