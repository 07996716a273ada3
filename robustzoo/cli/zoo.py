"""`robustzoo show` and `recipe`: what one name means. No torch import."""

from __future__ import annotations

import json

import click

from robustzoo.cli.output import say, table
from robustzoo.leaderboard.rows import row
from robustzoo.registry import entry
from robustzoo.registry import recipe as make_recipe
from robustzoo.registry.describe import changes, describe, paper_result, training_command
from robustzoo.registry.overrides import parse_assignments
from robustzoo.streams import one_line

_WIDEST = 48  # of the columns: no model name is wider
_NUMBERS = ("clean", "clean_interval", "robust", "robust_interval", "n", "protocol", "verified_by")


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def show(name: str, as_json: bool) -> None:
    """Show one entry: what it is, its weights, its numbers, and how to train it."""
    item = entry(name)
    weights, listed = item.weights, row(name)
    if listed.problem is not None:
        say(f"no numbers of {listed.recipe}: {listed.problem}", err=True)
    numbers = {key: value for key, value in listed.to_json().items() if key in _NUMBERS}
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
        **numbers,
        "train": training_command(item.recipe, item.name),
    }
    if as_json:
        say(json.dumps(record, indent=1))
        return
    record["changed"] = ", ".join(record["changed"])
    record |= {"clean": listed.clean, "robust": listed.robust}
    record["clean_interval"] = record["robust_interval"] = record["n"] = None
    record["verified_by"] = "; ".join(map(str, listed.records))
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
