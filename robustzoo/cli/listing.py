"""`robustzoo ls`: what exists, here and in the paper, for people and for programs. No torch import."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from robustzoo.cards.render import table as markdown_table
from robustzoo.cli.output import say, table
from robustzoo.leaderboard.rows import SORTS, Filter, Row, has_word, ordered, rows
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, LOSSES
from robustzoo.registry.packages import problems
from robustzoo.registry.paper import LOSSES as PAPER_LOSSES
from robustzoo.registry.paper import PROTOCOL, SILVER, TOP, Cell, cells, published_cell, tallies
from robustzoo.streams import one_line

NOTHING = 1  # exit code, as of grep
_WIDTH = 80
_NUMBERS = ("robust", "clean")


@click.command()
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--recipes", is_flag=True, help="Every name, with or without weights.")
@click.option("--published", is_flag=True, help="Only models with weights, even where none match.")
@click.option("--paper", is_flag=True, help="The paper's 120 results as a grid.")
@click.option("--dataset", multiple=True, type=click.Choice(list(DATASETS)), help="Repeatable.")
@click.option("--threat", multiple=True, metavar="NORM[:EPS]", help="linf or linf:8/255; repeatable.")
@click.option(
    "--architecture",
    multiple=True,
    metavar="NAME",
    type=click.Choice(list(ARCHITECTURES)),
    help="Repeatable.",
)
@click.option("--loss", multiple=True, type=click.Choice(list(LOSSES)), help="Repeatable.")
@click.option("--sort", type=click.Choice(SORTS), default="name", show_default=True, help="Best first.")
@click.option("--json", "form", flag_value="json", help="Accuracies as numbers in [0, 1].")
@click.option("--csv", "form", flag_value="csv", help="The same, one line per row.")
@click.option("--markdown", "form", flag_value="markdown", help="A table for a README.")
def ls(
    words: tuple[str, ...],
    recipes: bool,
    published: bool,
    paper: bool,
    dataset: tuple[str, ...],
    threat: tuple[str, ...],
    architecture: tuple[str, ...],
    loss: tuple[str, ...],
    sort: str,
    form: str | None,
) -> None:
    """List the models that can be loaded, with their numbers.

    Each WORD must match: a part of the name (`robustzoo ls cifar10 linf trades`), a piece of it, or a shell
    pattern of the whole ('*.digits_linf.*'). Where no model with weights matches, the recipes that do are
    listed: those can be trained. Exit code 1 where nothing matches.
    """
    if paper:
        _require_alone(published=published, recipes=recipes, csv=form == "csv", markdown=form == "markdown")
        if dataset or threat or architecture or loss or sort != "name":
            raise click.UsageError("--paper takes WORDs, such as `robustzoo ls --paper cifar10 trades`")
        sys.exit(show_results(words, as_json=form == "json"))
    if recipes and published:
        raise click.UsageError("--recipes shows every name and --published those with weights: leave one out")
    wanted = Filter(words, dataset, threat, architecture, loss)
    everything = rows()
    for problem in problems():
        say(f"left out, from another package: {one_line(problem)}", err=True)
    matching = wanted.chosen(everything)
    loadable = [item for item in matching if item.weights is not None]
    shown = matching if recipes else loadable if published else loadable or matching
    for item in shown:
        if item.problem is not None:
            say(f"no numbers of {item.recipe}: {item.problem}", err=True)
    shown = ordered(shown, sort)
    if form is not None:
        say({"json": _json, "csv": _csv, "markdown": _markdown}[form](shown))
    elif not shown:
        say(_nothing(wanted, published, matching, everything))
    else:
        say(_listing(shown))
        if not recipes and not published:
            say(_footer(wanted, loadable, matching, len(everything)))
    sys.exit(0 if shown else NOTHING)


def _require_alone(**given: bool) -> None:
    for name, there in given.items():
        if there:
            raise click.UsageError(f"--paper shows the paper's results, not our weights: leave --{name} out")


def _nothing(wanted: Filter, published: bool, matching: list[Row], everything: list[Row]) -> str:
    loadable = sum(item.weights is not None for item in everything)
    said = _given(wanted)
    if not published:
        what = f"no model matches {said!r}"
    elif loadable:
        what = f"none of the {loadable} models with weights matches {said!r}"
    else:
        what = "no weights are published"
    if matching and said:
        more = f"{len(matching)} recipes do: robustzoo ls --recipes {said}"
    else:
        more = f"`robustzoo ls --recipes` shows all {len(everything)} names"
    return f"{what}; {more}"


def _given(wanted: Filter) -> str:
    """The filter as it is written in a command."""
    options = {
        "dataset": wanted.datasets,
        "threat": wanted.threats,
        "architecture": wanted.architectures,
        "loss": wanted.losses,
    }
    given = [*wanted.words, *(f"--{key} {value}" for key, values in options.items() for value in values)]
    return one_line(" ".join(given))


def _footer(wanted: Filter, loadable: list[Row], matching: list[Row], everything: int) -> str:
    if not loadable:
        return f"\n{len(matching)} recipes, none with weights: `robustzoo show NAME` says how to train one"
    if len(matching) == everything:
        return f"\n{everything} recipes: robustzoo ls --recipes"
    return f"\n{len(matching)} recipes match: robustzoo ls --recipes {_given(wanted)}"


def _listing(shown: Sequence[Row]) -> str:
    """A table that fits 80 columns; what a name is too long for stands in the line below it."""
    if all(item.weights is None for item in shown):
        return _fitted([["recipe", "threat model"], *[[_name(i), str(i.threat_model)] for i in shown]])
    protocols = {item.protocol for item in shown if item.protocol}
    head = ["model", "threat model", "clean %", "robust %", "images"]
    lines = [
        [_name(i), str(i.threat_model), *_accuracies(i), str(i.robust.n if i.robust else "")] for i in shown
    ]
    if len(protocols) > 1:
        head.append("attacks")
        lines = [[*line, i.protocol or ""] for line, i in zip(lines, shown, strict=True)]
    found = [_fitted([head, *lines])]
    if protocols:
        by = next(iter(protocols)) if len(protocols) == 1 else "all attacks"
        found.append(f"\nrobust under {by}, an upper bound; to check: robustzoo verify NAME")
    found += [f"verified: {i.name}: {one_line(str(i.records[0]))}{_more(i)}" for i in shown if i.records]
    return "\n".join(found)


def _name(item: Row) -> str:
    return item.name if item.name == item.recipe else f"{item.name} ({item.recipe})"


def _more(item: Row) -> str:
    return f", and {len(item.records) - 1} more" if len(item.records) > 1 else ""


def _accuracies(item: Row) -> list[str]:
    return [f"{100 * a.value:.1f}" if a else "" for a in (item.clean, item.robust)]


def _fitted(lines: list[list[str]]) -> str:
    rest = [max(len(line[column]) for line in lines) for column in range(1, len(lines[0]))]
    room = _WIDTH - sum(rest) - 2 * len(rest)
    longest = max((len(line[0]) for line in lines if len(line[0]) <= room), default=0)
    folded = []
    for line in lines:
        if len(line[0]) > room:
            folded.append([line[0]])
            line = ["", *line[1:]]
        folded.append([line[0].ljust(longest), *line[1:]])
    long = {id(line) for line in folded if len(line) == 1}
    body = iter(table([line for line in folded if len(line) > 1]).splitlines())
    return "\n".join(one_line(line[0]) if id(line) in long else next(body) for line in folded)


def _json(shown: Sequence[Row]) -> str:
    return json.dumps([item.to_json() for item in shown], indent=1)


def _csv(shown: Sequence[Row]) -> str:
    stream = io.StringIO()
    names = (
        *("name", "recipe", "architecture", "dataset", "threat_model", "loss", "method", "parameters"),
        *("weights", "clean", "clean_low", "clean_high", "robust", "robust_low", "robust_high", "n"),
        *("protocol", "verified_by"),
    )
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    for item in shown:
        record: dict[str, Any] = item.to_json()
        for key in _NUMBERS:
            record[f"{key}_low"], record[f"{key}_high"] = record.pop(f"{key}_interval") or (None, None)
        record["verified_by"] = "; ".join(map(str, item.records))
        writer.writerow(record)
    return stream.getvalue().rstrip("\n")


def _markdown(shown: Sequence[Row]) -> str:
    lines = [["model", "threat model", "clean %", "robust %", "95 % interval", "attacks", "images"]]
    for item in shown:
        robust = item.robust
        interval = f"{100 * robust.low:.1f} to {100 * robust.high:.1f}" if robust else ""
        images = str(robust.n) if robust else ""
        name = f"`{one_line(item.name)}`"
        lines.append(
            [name, str(item.threat_model), *_accuracies(item), interval, item.protocol or "", images]
        )
    return markdown_table(lines)


_SIGNS = {TOP: "*", SILVER: "+", "": " "}
_EXTRA = ("vit_l16.imagenet_linf.trades1_trh", "vit_l16.imagenet_l2.trades1_trh")


def show_results(words: Sequence[str], *, as_json: bool) -> int:
    """Print the cells that match every word (none: all 120); marks are over all of them. The exit code."""
    chosen = [cell for cell in cells() if all(has_word(cell.name, word) for word in words)]
    if as_json:
        more = {"aa_protocol": PROTOCOL}
        records = [asdict(cell) | {"standard_error_percent": cell.standard_error} | more for cell in chosen]
        say(json.dumps(records, indent=1))
    elif not chosen:
        said = " ".join(words)
        say(f"no result of the paper has a name like {said!r}; `robustzoo ls --paper` shows all 120")
    else:
        say(_page(chosen, whole=not words))
    return 0 if chosen else NOTHING


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
    for loss in PAPER_LOSSES:
        for defence in dict.fromkeys(c.defence for c in chosen if c.loss == loss):
            found = (table.get((a, d, n, loss, defence)) for a, d, n, _ in columns)
            rows.append([f"{loss}_{defence}", *(_percents(cell) if cell else "" for cell in found)])
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        "  ".join([row[0].ljust(width), *(text.ljust(12) for text in row[1:])]).rstrip() for row in rows
    )


def _percents(cell: Cell) -> str:
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
