"""`robustzoo diagnose`: the curvature of a model's loss, the bound it enters, and the paper's two studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustzoo.cli.models import open_model, recipe_of, refuse_unknown
from robustzoo.cli.options import (
    FileToWrite,
    FiniteRange,
    attacked_model,
    check_data_root,
    images,
    seed,
    together,
)
from robustzoo.cli.output import JsonErrors, own_output, say, table
from robustzoo.cli.studies import lambda_sweep, two_moons
from robustzoo.diagnostics.bound import Guarantee, Prior
from robustzoo.diagnostics.results import write_csv
from robustzoo.errors import RobustzooError

if TYPE_CHECKING:
    from robustzoo.registry import Recipe


@click.group()
def diagnose() -> None:
    """Hessian, PAC-Bayes bound, gradient masking, and the studies of the paper."""


diagnose.add_command(two_moons)
diagnose.add_command(lambda_sweep)


_POSITIVE = FiniteRange(min=0, min_open=True)


_model_options = together(
    click.argument("model"),
    images,
    click.option(
        "--split",
        type=click.Choice(["train", "holdout", "test"]),
        help="Images whose loss is looked at; default: train. A folder of your own is taken whole.",
    ),
    click.option(
        "--n",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        help="How many: the first N, or of files in class folders a fixed random subset.",
    ),
    seed,
    click.option(
        "--probes",
        type=click.IntRange(min=2),
        default=32,
        show_default=True,
        help="Random sign vectors of Hutchinson's estimate.",
    ),
    click.option(
        "--stop-gradient/--full-gradient",
        default=True,
        show_default=True,
        help="Whether the clean softmax of a paired loss is a constant, as in the paper's traces.",
    ),
)


def _check_images(model: str, chosen: dict[str, Any]) -> Recipe | None:
    """The recipe of MODEL as of `recipe_of`, once its own images, where those are meant, can be there."""
    known = recipe_of(model)
    if chosen["data"] is None:
        check_data_root(chosen["data_root"], known)
    return known


@diagnose.command()
@_model_options
@click.option("--sigma0", type=_POSITIVE, help="Standard deviation of the prior; with --beta.")
@click.option("--beta", type=_POSITIVE, help="Weight of the data against the prior; with --sigma0.")
@click.option("--lambda", "trh_lambda", type=_POSITIVE, help="Weight of the trace; default: the recipe's.")
@click.option("--gamma", "trh_gamma", type=_POSITIVE, help="Weight of |theta|^2; default: the recipe's.")
@click.option(
    "--tau",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=0.05,
    show_default=True,
    help="1 - confidence.",
)
@click.option(
    "--sub-gaussian",
    type=FiniteRange(min=0),
    metavar="S2",
    help="Assume a sub-Gaussian loss of this variance factor, which gives the constant C a value.",
)
@click.option(
    "--weights",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="How many second derivatives to look at, at random places, for a variance of each weight's own.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def bound(
    model: str,
    split: str | None,
    n: int,
    seed: int,
    probes: int,
    stop_gradient: bool,
    sigma0: float | None,
    beta: float | None,
    trh_lambda: float | None,
    trh_gamma: float | None,
    tau: float,
    sub_gaussian: float | None,
    weights: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """The paper's PAC-Bayes bound at the weights of MODEL (a registry name or a model folder), term by term.

    The trace's term also in the two exact forms that the paper's is the first order of, with their argument
    x, which says whether that order is enough. The prior is given by --sigma0 and --beta, or by
    --lambda = sigma0^2 / 2 and --gamma = 1 / (2 beta sigma0^2).
    """
    if (sigma0 is None) != (beta is None) or (
        sigma0 is not None and (trh_lambda is not None or trh_gamma is not None)
    ):
        raise RobustzooError("give --sigma0 together with --beta, or --lambda and --gamma, not a mixture")
    known = _check_images(model, chosen)
    complete = sigma0 is not None or (trh_lambda is not None and trh_gamma is not None)
    if complete or known is not None:
        _prior(known, sigma0, beta, trh_lambda, trh_gamma)

    from robustzoo.cli.points import load_points  # torch
    from robustzoo.diagnostics import model_bound

    loaded, points, samples = load_points(model, chosen, split, n, seed)
    prior = _prior(loaded.recipe, sigma0, beta, trh_lambda, trh_gamma)
    guarantee, draws = Guarantee(samples, tau, sub_gaussian), model_bound.Draws(probes, weights, seed)
    found = model_bound.model_bound(loaded, points, prior, guarantee, draws, stop_gradient)
    say(json.dumps(found, indent=1) if as_json else model_bound.report(found))


def _prior(
    made: Recipe | None,
    sigma0: float | None,
    beta: float | None,
    trh_lambda: float | None,
    trh_gamma: float | None,
) -> Prior:
    """The prior of the options; what they leave open is the recipe's. Raises RobustzooError where none is."""
    if sigma0 is not None:
        return Prior(sigma0**2, beta)
    if made is not None:
        if made.trh_form == "relative" and trh_lambda is None:
            raise RobustzooError(
                f"{made.name} was trained with relative flatness, whose lambda weighs no term of the bound: "
                "give --lambda and --gamma, or --sigma0 and --beta"
            )
        trh_lambda = made.trh_lambda if trh_lambda is None else trh_lambda
        trh_gamma = made.trh_gamma if trh_gamma is None else trh_gamma
    return Prior.of_recipe(trh_lambda, trh_gamma)


@diagnose.command()
@_model_options
@click.option(
    "--weights-only", is_flag=True, help="Leave biases, scales and other one-dimensional parameters out."
)
@click.option(
    "--exact-up-to",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="P",
    help="Layers of at most P parameters get their exact trace.",
)
@click.option(
    "--eigenvalues",
    type=click.IntRange(min=0, max=100),
    default=1,
    show_default=True,
    metavar="K",
    help="The K smallest and K largest eigenvalues of each layer and the whole; 0: none.",
)
@click.option("--double", is_flag=True, help="Compute in float64.")
@click.option("--out", type=FileToWrite(), help="Write the table as CSV.")
@click.option(
    "--spectrum",
    type=FileToWrite(),
    help="Write each layer's spectrum as CSV: eigenvalues, or nodes of Lanczos quadrature, and weights.",
)
def hessian(
    model: str,
    split: str | None,
    n: int,
    seed: int,
    probes: int,
    stop_gradient: bool,
    weights_only: bool,
    exact_up_to: int,
    eigenvalues: int,
    double: bool,
    out: Path | None,
    spectrum: Path | None,
    **chosen: Any,
) -> None:
    """Trace and extreme eigenvalues of the Hessian of MODEL's robust loss, per layer.

    MODEL is a registry name or a model folder; the loss is its recipe's, at fixed adversarial points.
    """
    if out is not None and spectrum is not None and out.absolute() == spectrum.absolute():
        raise click.UsageError(f"--out and --spectrum are both {str(out)!r}: give each a file of its own")
    _check_images(model, chosen)

    from robustzoo.cli.points import load_points  # torch
    from robustzoo.diagnostics import model_loss
    from robustzoo.diagnostics import spectrum as tables

    loaded, points, _ = load_points(model, chosen, split, n, seed)
    loss, parameters = model_loss.loss_function(loaded, points, stop_gradient=stop_gradient, double=double)
    names = [name for name, p in parameters.items() if not weights_only or p.ndim > 1]
    whole = tables.LossHessian(loss, parameters, names)
    rows = tables.layer_table(whole, probes=probes, seed=seed, exact_up_to=exact_up_to, extremes=eigenvalues)
    say(f"{loaded.name}: loss {loaded.recipe.loss} = {whole.loss.item():.6g} on {len(points.y)} images")
    say(table([list(tables.COLUMNS), *[[_cell(row[key]) for key in tables.COLUMNS] for row in rows]]))
    top = model_loss.top_layer_trace(loaded, points, stop_gradient=stop_gradient)
    without = " (of the loss without S2O's term)" if "s2o" in loaded.recipe.defences else ""
    say(f"top-layer weight, closed form: trace {top:.6g}{without}")
    if out is not None:
        say(f"wrote {write_csv(out, tables.COLUMNS, rows)}")
    if spectrum is not None:
        nodes = tables.spectrum_table(whole, seed=seed, exact_up_to=exact_up_to)
        say(f"wrote {write_csv(spectrum, tables.SPECTRUM_COLUMNS, nodes)}")


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@diagnose.command(cls=JsonErrors)
@attacked_model
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result, and errors.")
def masking(model: str, as_json: bool, **options) -> None:
    """Look for signs of gradient masking in MODEL (named as for `evaluate`), and say them in words.

    Zero gradients, a loss that gradient steps do not raise, Square doing better than gradient attacks, and a
    clean accuracy that changes.
    """
    refuse_unknown(model)
    from robustzoo.diagnostics.masking_probe import probe_masking

    with own_output(as_json):
        loaded = open_model(model)
        found = probe_masking(
            loaded.module,
            loaded.images(options),
            options.pop("threat_model"),
            name=loaded.name,
            **options,
        )
    say(json.dumps(found.to_json(), indent=1) if as_json else found.text())
