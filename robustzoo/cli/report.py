"""`robustzoo report`: an Evidence for people, as text, as a picture, or as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.options import FileToWrite, data_root
from robustzoo.cli.say import say

if TYPE_CHECKING:
    from robustzoo.cards.evidence import Evidence
    from robustzoo.data import ImageDataset


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
    from robustzoo.reports.text import report as text

    document, path, others = _open(evidence)
    if as_json:
        say(json.dumps(_numbers(document, others), indent=1))
    else:
        say(text(document, details=True, others=others))
    if html_file is None and png_file is None:
        return
    from robustzoo.atomic_files import write_bytes, write_text
    from robustzoo.reports.figure import choose_pictures, png
    from robustzoo.reports.html import html

    shown, note = choose_pictures(document, path, _dataset(document, data, data_root), pictures)
    figure = png(document, shown)
    notes = [] if note is None else [note]
    for line in notes:
        say(f"note: {line}", err=True)
    if png_file is not None:
        write_bytes(png_file, figure)
        say(f"wrote {png_file}", err=True)
    if html_file is not None:
        write_text(html_file, html(document, figure, notes, others))
        say(f"wrote {html_file}", err=True)


def _open(place: str) -> tuple[Evidence, Path, list[Evidence]]:
    """The Evidence that is meant, its file, and the folder's other ones."""
    from robustzoo.cards.evidence import Evidence
    from robustzoo.cards.holdings import all_evidence
    from robustzoo.hub.load import resolve_folder
    from robustzoo.reports.comparison import is_file
    from robustzoo.verification.comparable import evidence_documents

    if is_file(place):
        return Evidence.load(place), Path(place), []
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


def _dataset(document: Evidence, data: str | None, data_root: Path | None) -> ImageDataset | None:
    """The clean images; None where they cannot be read and were not asked for."""
    from robustzoo.data import DataError, MissingData
    from robustzoo.verification.comparable import open_stated
    from robustzoo.verification.report import VerificationError

    try:
        return open_stated(document, data, data_root)
    except (DataError, MissingData, VerificationError):
        if data is not None or data_root is not None:
            raise
        return None


def _numbers(document: Evidence, others: list[Evidence]) -> dict[str, Any]:
    from robustzoo.cards.signs import masking_signs
    from robustzoo.reports.figure import stages
    from robustzoo.reports.text import per_class

    return {
        "schema": "robustzoo.report/1",
        "model": document.doc["model"],
        "threat_model": str(document.threat_model),
        "protocol": document.doc["protocol"]["name"],
        "after": {name: accuracy.to_json() for name, accuracy in stages(document)},
        "classes": [row.to_json() for row in per_class(document)],
        "masking": masking_signs(document, others),
    }
