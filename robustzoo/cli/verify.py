"""`robustzoo verify`: check what a card claims: replay its witnesses, or attack again, in part or in full."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import robustzoo
from robustzoo.cli.models import refuse_unknown
from robustzoo.cli.options import classes, data, data_root, trust, workers
from robustzoo.cli.output import (
    BAD_INPUT,
    JsonErrors,
    error_document,
    message_of,
    passes_through,
    say,
    say_error,
)
from robustzoo.registry import list_models
from robustzoo.verification.records import check_who, record

if TYPE_CHECKING:
    from robustzoo.verification.verify import VerificationReport


@click.command(cls=JsonErrors)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--all", "every", is_flag=True, help="Every published model (also the default without a MODEL)."
)
@click.option("--mode", type=click.Choice(["replay", "spot", "full"]), default="replay", show_default=True)
@click.option("--card", type=click.Path(path_type=Path), help="Another card than the folder's README.md.")
@data
@data_root
@classes
@trust
@click.option(
    "--tolerance",
    type=click.IntRange(min=0),
    help="In images; default, and most: the larger of 1 % of N and 3.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of the attacks; default: fresh system entropy, recorded."
)
@click.option("--same-seed", is_flag=True, help="Attack with the evidence's own seed.")
@workers
@click.option("--device", help="cpu or cuda[:i]; default: cpu.")
@click.option(
    "--require", type=click.Choice(["confirmed"]), help="Exit 3 when the outcome is only consistent."
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Append one JSON line per verification to this file, in a folder that exists.",
)
@click.option(
    "--record",
    metavar="WHO",
    help="Write the outcome to verified/DATE-WHO.json in the model's folder, for listings to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable reports, and errors.")
def verify(models: tuple[str, ...], every: bool, as_json: bool, **options) -> None:
    """Verify the claims of each MODEL (registry names or model folders).

    replay, in seconds, shows at most that the model is no more robust than claimed. spot attacks all images
    a little and a random sample of the survivors in full, until the claim is decided at 95 %. full attacks
    all images in full. What it costs here is said first.

    Exit code: 0 confirmed or consistent, 1 refuted, 2 bad input, 3 inconclusive, 4 not comparable;
    of several models, the worst: 2 before 1, 4 and 3. An error of one model does not stop the others.
    """
    if options["record"] is not None:
        check_who(options["record"])
        if options["card"] is not None:
            raise click.UsageError("--record is about the folder's own card; leave --card away")
    names = list(models) or list_models(published_only=True)
    if options["card"] and len(names) != 1:
        raise click.UsageError("--card goes with exactly one MODEL")
    if not names:
        raise click.UsageError("no model is published, so there is nothing to verify; name a model folder")
    documents: list[dict[str, Any]] = []
    rows: list[tuple[str, str]] = []
    codes: set[int] = set()
    try:
        for name in names:
            report, error = _attempt(name, options)
            if report is not None:
                documents.append(report.to_json())
                rows.append((report.outcome, report.name))
                codes.add(report.exit_code)
                if not as_json:
                    _say(report.text() + "\n")
            if error is not None:
                documents.append({"name": name, **error_document(error)})
                rows.append(("error", name if len(name) <= 80 else f"{name[:77]}..."))
                codes.add(BAD_INPUT)
                if not as_json:
                    say_error(message_of(error))
        if as_json:
            alone = len(documents) == 1 and BAD_INPUT in codes
            _say(json.dumps(documents[0] if alone else documents, indent=1))
        elif len(names) > 1:
            _say("\n".join(f"{outcome:<14} {name}" for outcome, name in rows))
    except OSError as failure:  # of the standard output: a full disk, a reader that went away
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - so that nothing is flushed again at the exit
        say_error(f"the report cannot be written: {failure.strerror or failure}")
        codes.add(BAD_INPUT)
    # Bad input outranks refuted, then not comparable, then inconclusive.
    sys.exit(next((code for code in (BAD_INPUT, 1, 4, 3) if code in codes), 0))


def _attempt(name: str, options: dict[str, Any]) -> tuple[VerificationReport | None, Exception | None]:
    """The report on one model, the error that the user should read, or both where only the log failed."""
    try:
        refuse_unknown(name)
        who = options["record"]
        report = robustzoo.verify(name, **{key: value for key, value in options.items() if key != "record"})
        if who is not None:
            say(f"wrote {record(Path(report.folder), report, who)}", err=True)
        return report, None
    except Exception as error:
        if passes_through(error):
            raise
        return getattr(error, "report", None), error


def _say(text: str) -> None:
    """Write to the standard output at once, so that a failure shows here."""
    say(text)
    sys.stdout.flush()
