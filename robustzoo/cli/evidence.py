"""`robustzoo report`, `compare` and `evidence`: what is done with Evidence that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from robustzoo.atomic_files import write_bytes, write_text
from robustzoo.cards.evidence import Evidence, read_evidence
from robustzoo.cards.holdings import all_evidence, evidence_documents
from robustzoo.cards.signs import masking_signs
from robustzoo.cli.options import FileToWrite, data_root
from robustzoo.cli.output import JsonErrors, say
from robustzoo.evaluation import shards, terms
from robustzoo.hub.load import resolve_folder
from robustzoo.reports import comparison, text
from robustzoo.reports.html import html


@click.command(cls=JsonErrors)
@click.argument("evidence")
@click.option(
    "--html",
    "html_file",
    type=FileToWrite(".html", ".htm"),
    help="Write one self-contained HTML file.",
)
@click.option("--png", "png_file", type=FileToWrite(".png"), help="Write the figure alone.")
@click.option(
    "--data", help="Where the clean images are, for the pictures; default: the Evidence's dataset by name."
)
@data_root
@click.option(
    "--pictures", type=click.IntRange(min=0), default=6, show_default=True, help="Perturbations to show."
)
@click.option("--json", "as_json", is_flag=True, help="Counts per attack and class as JSON; errors too.")
def report(
    evidence: str,
    html_file: Path | None,
    png_file: Path | None,
    data: str | None,
    data_root: Path | None,
    pictures: int,
    as_json: bool,
) -> None:
    """Report on EVIDENCE, a file, or a model whose main evidence is meant.

    Counts with intervals, per attack and per class, and signs of gradient masking. The figure adds iterations
    to break and pictures of perturbations.
    """
    document, path, others = _open(evidence)
    if as_json:
        say(json.dumps(_numbers(document, others), indent=1))
    else:
        say(text.report(document, details=True, others=others))
    if html_file is None and png_file is None:
        return
    from robustzoo.reports import figure  # torch and matplotlib
    from robustzoo.verification import comparable

    comparable.refuse_unread(data, [document])
    images = comparable.images_if_there(document, data, data_root)
    shown, note = figure.choose_pictures(document, path, images, pictures)
    drawn = figure.png(document, shown)
    notes = [] if note is None else [note]
    for line in notes:
        say(f"note: {line}", err=True)
    if png_file is not None:
        write_bytes(png_file, drawn)
        say(f"wrote {png_file}", err=True)
    if html_file is not None:
        write_text(html_file, html(document, drawn, notes, others))
        say(f"wrote {html_file}", err=True)


def _open(place: str) -> tuple[Evidence, Path, list[Evidence]]:
    """The Evidence that is meant, its file, and the folder's other ones."""
    if comparison.is_file(place):
        return read_evidence(place), Path(place), []
    folder = resolve_folder(place)
    files = {document.deterministic_bytes(): path for document, path in evidence_documents(folder)}
    main, *others = all_evidence(folder)
    if others:
        say(
            f"the main one of {len(others) + 1} Evidence; others: "
            + ", ".join(
                sorted(path.name for path in files.values() if path != files[main.deterministic_bytes()])
            ),
            err=True,
        )
    return main, files[main.deterministic_bytes()], others


def _numbers(document: Evidence, others: list[Evidence]) -> dict[str, Any]:
    return {
        "schema": "robustzoo.report/1",
        "model": document.doc["model"],
        "threat_model": str(document.threat_model),
        "protocol": document.doc["protocol"]["name"],
        "after": {name: accuracy.to_json() for name, accuracy in text.stages(document)},
        "classes": [row.to_json() for row in text.per_class(document)],
        "masking": masking_signs(document, others),
    }


@click.command(cls=JsonErrors)
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable comparison, and errors.")
def compare(a: str, b: str, as_json: bool) -> None:
    """Compare A and B, each an Evidence file or a model with Evidence, on the same images.

    Prints the paired table, the exact McNemar test and the interval of the difference. Refused (exit code 2)
    where images, threat model or protocol differ.
    """

    result = comparison.compare(stored_evidence(a), stored_evidence(b))
    say(json.dumps(result.to_json(), indent=1) if as_json else result.text())


def stored_evidence(place: str):
    """The Evidence that a command's argument means: a file's, or those of a model's folder, main one
    first."""
    return comparison.open_evidence(place if comparison.is_file(place) else resolve_folder(place))


@click.group()
def evidence() -> None:
    """Work with the Evidence files of evaluations."""


@evidence.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the merged evidence.")
def merge(folders: tuple[Path, ...], out: Path) -> None:
    """Merge the shards in each FOLDER (`robustzoo evaluate --shard i/n`) into the Evidence of the whole.

    Shards may come in any order and from several machines. The result is what a single run would have
    written; a shard that is missing, there twice, or of another evaluation is an error that names it.
    """
    for path in shards.merge(folders, out):
        say(f"wrote {path}\n\n{text.report(terms.with_witnesses(path))}")
