"""`robustzoo ls`, `show` and `recipe`: what exists. No torch import."""

from __future__ import annotations

import json

import click

from robustzoo.registry import entry, list_models
from robustzoo.registry import recipe as make_recipe
from robustzoo.registry.describe import describe, training_command
from robustzoo.registry.entries import Entry
from robustzoo.registry.overrides import parse_assignments


def _numbers(item: Entry) -> dict[str, str]:
    """Clean and robust accuracy of a published entry, read from the evidence beside its weights."""
    from robustzoo.cards.published import published_evidence

    evidence = published_evidence(item)
    if evidence is None:
        return {"clean": "", "robust": "", "protocol": ""}
    clean, robust = evidence.clean_accuracy, evidence.robust_accuracy
    return {
        "clean": f"{100 * clean.value:.1f} %",
        "robust": f"{100 * robust.value:.1f} %",
        "protocol": f"{evidence.doc['protocol']['name']}, n={robust.n}",
    }


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


@click.command()
@click.argument("pattern", required=False)
@click.option("--published", is_flag=True, help="Only models whose weights can be loaded.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def ls(pattern: str | None, published: bool, as_json: bool) -> None:
    """List the zoo: every name that has a recipe, and the numbers of those with weights.

    PATTERN is a shell pattern such as '*.digits_linf.*'.
    """
    names = list_models(pattern, published_only=published)
    records = []
    for name in names:
        item = entry(name)
        status = item.weights.source if item.weights else "recipe only"
        records.append(
            {"name": name, "threat_model": str(item.recipe.threat_model), "weights": status, **_numbers(item)}
        )
    if as_json:
        click.echo(json.dumps(records, indent=1))
        return
    if not records:
        what = "no weights are published" if pattern is None else f"no model matches {pattern!r}"
        click.echo(f"{what}; `robustzoo ls` shows all {len(list_models())} names")
        return
    keys = ["name", "threat_model", "weights", "clean", "robust", "protocol"]
    records.sort(key=lambda r: (r["weights"] == "recipe only", r["name"]))
    click.echo(_table([[k.replace("_", " ") for k in keys], *[[r[k] for k in keys] for r in records]]))


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
        "recipe_digest": item.recipe.digest,
        "weights": None if weights is None else vars(weights),
        **_numbers(item),
        "train": training_command(item.recipe),
    }
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    if weights is None:
        record["weights"] = "none published; train it with the command below"
    else:
        where = weights.path if weights.repo is None else f"{weights.repo}@{weights.commit}"
        record["weights"] = f"{weights.source} {where}, {weights.bytes:,} bytes, sha256 {weights.sha256}"
        record["load"] = f'robustzoo.load("{item.name}")'
        record["verify"] = f"robustzoo verify {item.name}"
    width = max(map(len, record))
    click.echo("\n".join(f"{k.replace('_', ' '):<{width}}  {v}" for k, v in record.items() if v))


@click.command()
@click.argument("name")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change one value of the recipe."
)
@click.option("--json", "as_json", is_flag=True, help="The recipe as a JSON file that train.py accepts.")
def recipe(name: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Print a recipe: every value with its source, and what training it costs.

    NAME is a registry name or the path of a JSON recipe.
    """
    chosen = make_recipe(name, parse_assignments(assignments))
    if as_json:
        click.echo(json.dumps(chosen.to_json(), indent=1))
        return
    click.echo(f"{chosen.name}  (digest {chosen.digest[:16]})\n")
    click.echo(_table([["value", "", "source"], *[[k, str(v), s] for k, v, s in describe(chosen)]]))
    click.echo("\ncost")
    click.echo("\n".join(f"  {k.replace('_', ' ')}: {v}" for k, v in chosen.cost().items()))
