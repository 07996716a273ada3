"""`robustzoo ls`, `show` and `recipe`: what exists, here and in the paper. No torch import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import click

from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.holdings import main_evidence
from robustzoo.cli.output import say, table
from robustzoo.registry import entry, list_models
from robustzoo.registry import recipe as make_recipe
from robustzoo.registry.catalog import DATASETS, THREATS
from robustzoo.registry.describe import changes, describe, paper_result, training_command
from robustzoo.registry.entries import Entry, Weights, pin_problem, read_lock
from robustzoo.registry.names import parse
from robustzoo.registry.overrides import parse_assignments
from robustzoo.registry.packages import brought, problems
from robustzoo.registry.paper import LOSSES, PROTOCOL, SILVER, TOP, Cell, cells, published_cell, tallies
from robustzoo.streams import one_line

NOTHING = 1  # exit code, as of grep
_WIDEST = 48  # of the columns: no model name is wider


def _numbers(recipe_name: str, weights: Weights | None) -> dict[str, str]:
    """Clean and robust accuracy of published weights, read from the evidence beside them; none, and a word on
    stderr, where the folder is not the pinned one, so that no other model's numbers stand under the name."""
    folder = weights.folder if weights else None
    if folder is not None and folder.is_dir():
        problem = pin_problem(recipe_name, weights, folder)
        if problem is not None:
            say(f"no numbers of {recipe_name}: {problem}", err=True)
            folder = None
    evidence = None if folder is None or weights is None else _stated(recipe_name, weights, folder)
    if evidence is None:
        return {"clean": "", "robust": "", "protocol": ""}
    clean, robust = evidence.clean_accuracy, evidence.robust_accuracy
    return {
        "clean": f"{100 * clean.value:.1f} %",
        "robust": f"{100 * robust.value:.1f} %",
        "protocol": f"{evidence.doc['protocol']['name']}, n={robust.n}",
    }


def _stated(recipe_name: str, weights: Weights, folder: Path) -> Evidence | None:
    """The main evidence of a folder, after a quick look at what it is about; None, and a word on stderr,
    where that is not the name's own: other weights, other images, or no evidence at all."""
    try:
        evidence = main_evidence(folder, validate=False)
        if evidence is None:
            return None
        doc, dataset = evidence.doc, parse(recipe_name.partition("+")[0]).dataset
        problem = images_problem(doc)
        if (doc["dataset"]["id"], doc["dataset"]["split"]) != (dataset, "test"):
            problem = f"its evidence is about {doc['dataset']['id']} {doc['dataset']['split']}"
        elif doc["model"]["sha256"] != weights.sha256:
            problem = "its evidence is about other weights"
        elif not evidence.robust_accuracy.n == evidence.clean_accuracy.n == len(doc["dataset"]["indices"]):
            problem = "its evidence has counts of other images"
        elif not isinstance(doc["protocol"]["name"], str):
            problem = "its evidence is malformed"
    except EvidenceError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # not validated: that takes long
        problem = "its evidence is malformed"
    if problem is None:
        return evidence
    say(f"no numbers of {recipe_name}: {one_line(problem)}", err=True)
    return None


def _record(name: str, locked: dict[str, Weights], others: dict[str, Entry]) -> dict[str, str]:
    """A row of the list. A recipe of the registry is not composed for it: there are hundreds."""
    if name in others:
        threat_model, weights = others[name].recipe.threat_model, others[name].weights
        made = others[name].recipe.name
    else:
        parsed = parse(name)
        threat_model, weights, made = THREATS[parsed.dataset, parsed.norm], locked.get(name), name
    status = weights.source if weights else "recipe only"
    row = {"name": name, "recipe": made, "threat_model": str(threat_model), "weights": status}
    return row | _numbers(made, weights)


@click.command()
@click.argument("pattern", required=False)
@click.option("--published", is_flag=True, help="Only models whose weights can be loaded.")
@click.option("--paper", is_flag=True, help="The paper's 120 results as a grid, in place of the list.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def ls(pattern: str | None, published: bool, paper: bool, as_json: bool) -> None:
    """List the zoo: every name that has a recipe, and the numbers of those with weights.

    PATTERN is a shell pattern such as '*.digits_linf.*'. Exit code 1 where nothing matches.
    """
    if paper:
        if published:
            raise click.UsageError(
                "--paper shows the paper's results, not our weights: leave --published out"
            )
        show_results(pattern, as_json=as_json)
        return
    locked, others = read_lock(), brought()
    records = [_record(name, locked, others) for name in list_models(pattern, published_only=published)]
    for problem in problems():
        say(f"left out, from another package: {one_line(problem)}", err=True)
    if as_json:
        say(json.dumps(records, indent=1))
        sys.exit(0 if records else NOTHING)
    if not records:
        what = "no weights are published" if pattern is None else f"no model matches {pattern!r}"
        say(f"{what}; `robustzoo ls` shows all {len(list_models())} names")
        sys.exit(NOTHING)
    keys = ["name", "threat_model", "weights", "clean", "robust", "protocol"]
    if any(r["recipe"] != r["name"] for r in records):
        keys.insert(1, "recipe")
    records.sort(key=lambda r: (r["weights"] == "recipe only", r["name"]))
    say(table([[k.replace("_", " ") for k in keys], *[[r[k] for k in keys] for r in records]], _WIDEST))


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def show(name: str, as_json: bool) -> None:
    """Show one entry: what it is, its weights, its numbers, and how to train it."""
    item = entry(name)
    weights = item.weights
    record = {
        "name": item.name,
        "architecture": item.recipe.architecture,
        "dataset": item.recipe.dataset,
        "threat_model": str(item.recipe.threat_model),
        "recipe": item.recipe.name,
        "recipe_digest": item.recipe.digest,
        "changed": [f"{key}={value} (was {was})" for key, value, was in changes(item.recipe)],
        "brought_by": item.brought_by,
        "paper": paper_result(item.recipe),
        "weights": None if weights is None else vars(weights),
        **_numbers(item.recipe.name, weights),
        "train": training_command(item.recipe, item.name),
    }
    if as_json:
        say(json.dumps(record, indent=1))
        return
    record["changed"] = ", ".join(record["changed"])
    if weights is None:
        record["weights"] = "none published; train it with the command below"
    else:
        where = weights.path if weights.repo is None else f"{weights.repo}@{weights.commit}"
        record["weights"] = f"{weights.source} {where}, {weights.bytes:,} bytes, sha256 {weights.sha256}"
        record["load"] = f'robustzoo.load("{item.name}")'
        record["verify"] = f"robustzoo verify {item.name}"
    width = max(map(len, record))
    say("\n".join(f"{k.replace('_', ' '):<{width}}  {one_line(str(v))}" for k, v in record.items() if v))


@click.command()
@click.argument("name")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change one value of the recipe."
)
@click.option("--json", "as_json", is_flag=True, help="The recipe as a JSON file that train.py accepts.")
def recipe(name: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Print a recipe: every value with its source, the paper's result, and what training it costs.

    NAME is a name that `robustzoo ls` lists, or the path of a JSON recipe.
    """
    chosen = make_recipe(name, parse_assignments(assignments))
    if as_json:
        say(json.dumps(chosen.to_json(), indent=1))
        return
    say(f"{chosen.name}  (digest {chosen.digest[:16]})\n")
    say(table([["value", "", "source"], *[[k, str(v), s] for k, v, s in describe(chosen)]], _WIDEST))
    for key, value, was in changes(chosen):
        say(f"\nchanged from {chosen.base_name}: {key}={value} (was {was})")
    say(f"\nthe paper: {paper_result(chosen)}")
    say("\ncost")
    say("\n".join(f"  {k.replace('_', ' ')}: {v}" for k, v in chosen.cost().items()))


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
