"""`robustzoo evaluate` and `crosscheck`: accuracy of a model, as Evidence, and beside another's attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from robustzoo.atomic_files import write_bytes
from robustzoo.cli.models import open_model, refuse_unknown
from robustzoo.cli.options import attacked_model, seed, trust, workers
from robustzoo.cli.options import images as image_options
from robustzoo.cli.output import JsonErrors, own_output, say
from robustzoo.registry import ThreatModel
from robustzoo.reports.text import report


@click.command(cls=JsonErrors)
@click.argument("model")
@image_options
@trust
@click.option(
    "--threat-model",
    "threat_models",
    metavar="NORM:EPS",
    multiple=True,
    help="For example linf:8/255; default: the model's own. Several (repeat the option) give a table, with "
    "the accuracy under all of them. `corruptions` measures the fifteen common ones.",
)
@click.option(
    "--epsilons",
    metavar="EPS,EPS,...",
    help="A curve over these epsilons, for example 1/255,2/255,4/255, in the threat model's norm.",
)
@click.option(
    "--protocol", default="aa-standard", show_default=True, help="aa-standard, apgd-ce+t, pgd-40, ..."
)
@click.option(
    "--n",
    "--images",
    "n",
    type=click.IntRange(min=1),
    help="Evaluate a fixed random subset of this many images. (Launchers take --n for an option of theirs.)",
)
@seed
@click.option("--micro-batch", type=click.IntRange(min=1), help="Images per forward pass; recorded.")
@workers
@click.option("--device", help="cpu or cuda[:i]; default: cuda if there is one.")
@click.option(
    "--precision",
    type=click.Choice(["float32", "tf32", "bf16"]),
    default="float32",
    show_default=True,
    help="Of the search; what it finds counts once float32 confirms it.",
)
@click.option("--compile", "compiled", is_flag=True, help="Search through torch.compile.")
@click.option("--shard", metavar="I/N", help="Do part I of N; see `robustzoo evidence merge`.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the evidence, and for the journal from which an interrupted run goes on; default: the "
    "model folder (for one threat model).",
)
@click.option(
    "--corrupted",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Of --threat-model corruptions: published arrays (CIFAR-10-C) or folders (ImageNet-C), in the order "
    "of the clean images of --data; default: made here from them (extra corruptions).",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Compute anew: discard the journal, and replace what is finished (else it is read).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the Evidence document instead of a report; errors as JSON too.",
)
def evaluate(
    model: str,
    threat_models: tuple[str, ...],
    epsilons: str | None,
    out: Path | None,
    as_json: bool,
    micro_batch: int | None,
    device: str | None,
    trust: Path | None,
    **options: Any,
) -> None:
    """Attack MODEL and write Evidence.

    MODEL is a registry name, a model folder, timm:NAME, hf-hub:OWNER/REPO (in timm's layout), or
    FILE.py:FUNCTION for a model of your own: the function is run, without arguments, and returns a
    torch.nn.Module from pixels in [0, 1] to logits, in eval mode. Such models need --data and --threat-model.

    A bundled model's evidence is written only where --out says. An interrupted run goes on when the same
    command is given again, and a finished one is read. Under torchrun or the deepspeed launcher the ranks
    share the images (with --out).
    """
    if any(text.lower().startswith("corruptions") for text in threat_models):
        if len(threat_models) > 1 or epsilons is not None:
            raise click.UsageError("--threat-model corruptions goes alone, without --epsilons")
        _refuse_of_attacks(click.get_current_context())
        options |= {"micro_batch_size": micro_batch, "device": device, "out": out}
        severity = int(ThreatModel.parse(threat_models[0]).epsilon)
        _corruptions(model, severity, as_json, trust, options)
        return
    if options.pop("corrupted") is not None:
        raise click.UsageError("--corrupted goes with --threat-model corruptions")
    if epsilons is not None and len(threat_models) > 1:
        raise click.UsageError("--epsilons goes with one --threat-model, which gives the norm")
    refuse_unknown(model)
    from robustzoo.evaluation import machine, series, shards  # torch: after what is refused without it

    rank = shards.this_rank()
    several = epsilons is not None or len(threat_models) > 1
    with own_output(as_json):
        loaded = open_model(model, trust)
        images = loaded.images(options)
        chosen = threat_models or (getattr(loaded.module, "threat_model", None),)
        options |= {
            "name": loaded.name,
            "micro_batch_size": micro_batch,
            "device": device or machine.default_device(None if rank is None else rank.local),
            "out": loaded.folder if out is None and not several else out,
        }
        if epsilons is not None:
            norm = chosen[0]
            found = series.evaluate_curve(
                loaded.module, images, epsilons.split(","), norm, rank=rank, **options
            )
        elif several:
            found = series.evaluate_threat_models(loaded.module, images, chosen, rank=rank, **options)
        else:
            _, found = series.evaluate_on_rank(rank, loaded.module, images, chosen[0], **options)
    if found is None:  # a rank other than 0 has nothing to say
        return
    if epsilons is not None and out is not None and options.get("shard") is None:
        from robustzoo.reports.figure import curve_png

        picture = Path(out) / f"curve-{found.points[0].threat_model.norm}.png"
        write_bytes(picture, curve_png(found.points))
        say(f"wrote {picture}", err=True)
    document = found.to_json() if several else found.doc
    text = found.text() if several else report(found)
    say(json.dumps(document, indent=1, sort_keys=True) if as_json else text)


@click.command(cls=JsonErrors)
@click.option(
    "--engine",
    type=click.Choice(["autoattack", "torchattacks"]),
    default="autoattack",
    show_default=True,
    help="Package to compare with: pyautoattack (or autoattack), or torchattacks; extra `crosscheck`.",
)
@click.option(
    "--attacks",
    default="apgd-ce,apgd-t,fab-t,square",
    show_default=True,
    help="Which, with commas between them.",
)
@attacked_model
@click.option(
    "--micro-batch", "micro_batch_size", type=click.IntRange(min=1), help="Images per forward pass."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable table, with ids; errors too.")
def crosscheck(model: str, attacks: str, as_json: bool, **options) -> None:
    """Compare our attacks with another package's, one by one, on MODEL (named as for `evaluate`).

    The result is a table of agreement, not Evidence: what another package finds keeps that package's name.
    --seed is that of both sides; --workers and --micro-batch are ours alone.
    """
    refuse_unknown(model)
    from robustzoo.diagnostics.crosscheck import crosscheck as run

    with own_output(as_json):
        loaded = open_model(model)
        result = run(
            loaded.module,
            loaded.images(options),
            options.pop("threat_model"),
            attacks=[attack.strip() for attack in attacks.split(",") if attack.strip()],
            name=loaded.name,
            **options,
        )
    say(json.dumps(result.to_json(), indent=1) if as_json else result.text())


def _refuse_of_attacks(ctx: click.Context) -> None:
    """Raise click.UsageError for an option that was given and says something of attacks alone."""
    of_attacks = ("protocol", "workers", "precision", "compiled", "shard", "restart")
    for option in ctx.command.params:
        name = option.name or ""
        if name in of_attacks and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} is of attacks, and corruptions are none: leave it away")


def _corruptions(
    model: str, severity: int, as_json: bool, trust: Path | None, options: dict[str, Any]
) -> None:
    """Common corruptions: no attack, so of the options those alone that say which images."""
    refuse_unknown(model)
    from robustzoo.evaluation.corruptions import evaluate_corruptions
    from robustzoo.evaluation.machine import default_device

    asked = ("corrupted", "n", "seed", "micro_batch_size", "out")
    with own_output(as_json):
        loaded = open_model(model, trust)
        images = loaded.images(options)
        given = {key: options[key] for key in asked} | {"device": options["device"] or default_device(None)}
        given["out"] = given["out"] or loaded.folder
        found = evaluate_corruptions(loaded.module, images, severity=severity, name=loaded.name, **given)
    say(json.dumps(found.doc, indent=1, sort_keys=True) if as_json else report(found))
