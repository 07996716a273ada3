"""The static site: tables, a page for each model, and the same as JSON and Markdown."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from robustzoo import atomic_files
from robustzoo.cards.head import ATTACKS, PERTURBATIONS, attacked_first
from robustzoo.cards.metadata import split_card
from robustzoo.cards.render import table as markdown_table
from robustzoo.errors import RobustzooError
from robustzoo.leaderboard.lines import Line, Model
from robustzoo.leaderboard.page import Cell, Table, TableRow, document, plain_table, size_of, table
from robustzoo.leaderboard.picture import Point, scatter
from robustzoo.leaderboard.reported import ROBUSTBENCH_COMMIT, Reported, from_robustbench, from_the_paper
from robustzoo.leaderboard.rows import method_of
from robustzoo.reports.text import stages
from robustzoo.streams import one_line

SCHEMA = "robustzoo.leaderboard/1"
DATA = "leaderboard.json"
_REPORTED = (
    '<p class="note"><strong>Reported.</strong> These numbers are as their sources print them. robustzoo has '
    "no Evidence for them, and they are no part of the verified table.</p>"
)

_OTHER_PICTURE = re.compile(
    rf'<img src="(?!(?:{re.escape(ATTACKS)}|{re.escape(PERTURBATIONS)})")[^"]*" alt="([^"]*)"[^>]*>'
)
# A part that the card folds away, its tags still text.
_FOLDED = re.compile(
    r"<p>&lt;details&gt;\s*&lt;summary&gt;([^<>]*)&lt;/summary&gt;</p>(.*?)<p>&lt;/details&gt;</p>", re.DOTALL
)


def build(models: Sequence[Model], out: Path) -> None:
    """Write the site into `out`, all of it or nothing: an absent or empty folder, or a site made before.

    Raises:
        RobustzooError: `out` holds something else.
    """
    _require_ours(out)
    paper, robustbench = from_the_paper(), from_robustbench()
    lines = _ranked([Line(model, *found) for model in models for found in model.documents])
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_files.staging_folder(out.absolute()) as staging:
        _write(staging / "index.html", _verified_page(lines))
        _write(staging / "paper.html", _reported_page("The paper's 120 results", "paper.html", paper, _PAPER))
        _write(
            staging / "robustbench.html",
            _reported_page("RobustBench's published results", "robustbench.html", robustbench, _ROBUSTBENCH),
        )
        data = {
            "schema": SCHEMA,
            "verified": [line.to_json() for line in lines],
            "reported": {
                "paper": [found.to_json() for found in paper],
                "robustbench": [found.to_json() for found in robustbench],
            },
        }
        _write(staging / DATA, json.dumps(data, indent=1) + "\n")
        _write(staging / "leaderboard.md", _markdown(lines))
        for model in models:
            _model_files(staging, model)
        atomic_files.replace_folder(staging, out.absolute())


def _require_ours(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        if json.loads((out / DATA).read_text(encoding="utf-8"))["schema"] == SCHEMA:
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RobustzooError(
        f"{out} holds something else than a site of `robustzoo leaderboard build`, and would be replaced: "
        "name an empty or a new folder"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")  # the folder is new: it gets its name when all is written


def _ranked(lines: Iterable[Line]) -> list[Line]:
    """The most robust first, within a dataset and threat model."""

    def key(line: Line) -> tuple[Any, ...]:
        robust = line.evidence.robust_accuracy.value
        return (line.dataset, str(line.evidence.threat_model), -robust, line.model.name)

    return sorted(lines, key=key)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _interval(accuracy: Any) -> str:
    return f"{_percent(accuracy.low)} to {_percent(accuracy.high)}"


def _verified_page(lines: Sequence[Line]) -> str:
    heads = [
        *(("Model", False), ("Robust %", True), ("Clean %", True), ("Attacks", False)),
        *(("Dataset", False), ("Threat model", False), ("Architecture", False), ("Method", False)),
        *(("Extra data", False), ("Parameters", True), ("Verified by", False)),
    ]
    rows = []
    for rank, line in enumerate(lines, start=1):
        found = line.to_json()
        clean, robust = line.evidence.clean_accuracy, line.evidence.robust_accuracy
        filters = {
            "dataset": line.dataset,
            "threat": found["threat_model"],
            "architecture": found["architecture"],
            "method": found["method"],
            "extra": found["extra_data"],
            "parameters": found["parameters_class"],
        }
        cells = [
            Cell(f"{rank}. {line.model.name}", found["page"], sort=rank),
            Cell(_percent(robust.value), found["evidence"], robust.value, _interval(robust)),
            Cell(_percent(clean.value), found["evidence"], clean.value, _interval(clean)),
            Cell(found["protocol"], small=f"{robust.n} images"),
            *(Cell(filters[key]) for key in ("dataset", "threat", "architecture", "method", "extra")),
            Cell(f"{found['parameters']:,}", sort=found["parameters"]),
            Cell("; ".join(map(str, line.records)) or "not recorded"),
        ]
        rows.append(TableRow(f"row{rank}", cells, filters))
    filters = [("dataset", "Dataset"), ("threat", "Threat model"), ("architecture", "Architecture")]
    filters += [("method", "Method"), ("extra", "Extra data"), ("parameters", "Parameters")]
    points = [line.point(f"row{rank}", rank) for rank, line in enumerate(lines, start=1)]
    body = (
        "<h1>Robust models whose numbers you can check</h1>\n"
        "<p>Every number is a count in Evidence, with a verdict for each image and a stored fooling point "
        "for each broken one. Robust accuracy under a fixed set of attacks is an upper bound. "
        "<code>robustzoo verify NAME</code> checks a row. Accuracies of different data sets, threat models "
        "or attacks do not compare.</p>\n"
        f"{_figure(points, 'Clean against robust accuracy, with exact 95 % intervals; a point is a link')}"
        f"{table(Table('Models with evidence', heads, rows, filters, sorted_by=0))}"
    )
    return document("robustzoo leaderboard", body, active="index.html", script=True)


def _figure(points: Sequence[Point], caption: str) -> str:
    if not points:
        return ""
    title = "Clean against robust accuracy"
    return (
        f'<figure>{scatter(points, title=title)}<figcaption class="faint">{escape(caption)}.</figcaption>'
        "</figure>\n"
    )


_PAPER = (
    "All results of Wang et al., <cite>Improving Robust Generalization by Direct PAC-Bayesian Bound "
    "Minimization</cite> (CVPR 2023), main table and appendix. What the paper calls AutoAttack tries less "
    "than the standard one (here <code>apgd-ce+dlr</code>), so these numbers are no AutoAttack numbers."
)
_ROBUSTBENCH = (
    'AutoAttack results of <a href="https://robustbench.github.io">RobustBench</a> for Linf and L2, read '
    f"from its repository at commit <code>{ROBUSTBENCH_COMMIT[:12]}</code>. Where it knows of a lower number "
    "by another attack, that is the row's robust accuracy, with AutoAttack's below."
)


def _reported_page(title: str, file: str, results: Sequence[Reported], intro: str) -> str:
    heads = [
        *(("Model", False), ("Robust %", True), ("Clean %", True), ("Attacks", False), ("Dataset", False)),
        *(("Threat model", False), ("Architecture", False), ("Method", False), ("Extra data", False)),
        ("Source", False),
    ]
    named = any(found.method for found in results)
    if not named:
        heads.remove(("Method", False))
    rows, points = [], []
    for rank, found in enumerate(results, start=1):
        filters = {
            "dataset": found.dataset,
            "threat": found.threat_model,
            "architecture": found.architecture,
            "method": found.method,
            "extra": found.extra_data,
        }
        lower = found.lowest_percent < found.aa_percent
        is_link = found.source.startswith("https://")
        link = found.paper or (found.source if is_link else f"#row{rank}")
        cells = [
            Cell(f"{rank}. {found.name}", found.paper or None, sort=rank),
            Cell(
                f"{found.lowest_percent:.2f}".removesuffix("0"),
                sort=found.lowest_percent,
                small=f"AutoAttack {found.aa_percent}" if lower else "",
            ),
            Cell(f"{found.clean_percent:.2f}".removesuffix("0"), sort=found.clean_percent),
            Cell(found.protocol if not lower else f"{found.protocol} and others"),
            *(Cell(filters[key] or "not said") for key in filters if key != "method" or named),
            Cell("reported: entry" if is_link else "reported: the paper", found.source if is_link else None),
        ]
        rows.append(TableRow(f"row{rank}", cells, filters))
        said = f"{found.name} (reported)"
        points.append(Point(f"row{rank}", rank, said, link, found.clean_percent, found.lowest_percent))
    shown = [("dataset", "Dataset"), ("threat", "Threat model"), ("architecture", "Architecture")]
    shown += [
        (key, label) for key, label in (("method", "Method"), ("extra", "Extra data")) if _any(rows, key)
    ]
    body = (
        f"<h1>{escape(title)}</h1>\n{_REPORTED}\n<p>{intro}</p>\n"
        f"{_figure(points, 'As reported; a point is a link')}"
        f"{table(Table(title, heads, rows, shown, sorted_by=0))}"
    )
    return document(title, body, active=file, script=True)


def _any(rows: Sequence[TableRow], key: str) -> bool:
    return any(row.filters[key] for row in rows)


def _markdown(lines: Sequence[Line]) -> str:
    rows = [["model", "dataset", "threat model", "attacks", "robust %", "95 % interval", "clean %", "images"]]
    for line in lines:
        found = line.to_json()
        clean, robust = line.evidence.clean_accuracy, line.evidence.robust_accuracy
        rows.append(
            [
                f"[{one_line(line.model.name)}]({found['page']})",
                line.dataset,
                found["threat_model"],
                found["protocol"],
                f"[{_percent(robust.value)}]({found['evidence']})",
                _interval(robust),
                _percent(clean.value),
                str(robust.n),
            ]
        )
    return f"# Robust models with evidence\n\n{markdown_table(rows)}\n"


def _model_files(root: Path, model: Model) -> None:
    """The page of a model with its figures, and copies of its card and Evidence."""
    place = root / "models" / model.slug
    (place / "evidence").mkdir(parents=True)
    body = [f"<h1>{escape(one_line(model.name))}</h1>", f'<p class="faint">{escape(_told(model))}</p>']
    for number, (evidence, file) in enumerate(model.documents, start=1):
        shutil.copyfile(file, place / "evidence" / file.name)
        (place / f"figure{number}.png").write_bytes(_picture(evidence, file))
        body.append(_evidence_part(evidence, file, number))
    if model.records:
        said = "".join(f"<li>{escape(one_line(str(record)))}</li>" for record in model.records)
        body.append(f"<h2>Verified by</h2><ul>{said}</ul>")
    for picture, content in _pictures_of_card(model).items():
        (place / picture).write_bytes(content)
    _write(place / "README.md", model.card)
    body.append(f'<h2>Card</h2>\n<div class="card" id="table">{_card(model.card)}</div>')
    _write(place / "index.html", document(model.name, "\n".join(body), up="../../"))


def _pictures_of_card(model: Model) -> dict[str, bytes]:
    """Path beside the card -> content of the pictures that it shows, made anew from the Evidence."""
    from robustzoo.reports import pictures
    from robustzoo.verification import comparable  # torch

    if not any(f"]({name})" in model.card for name in (ATTACKS, PERTURBATIONS)):
        return {}
    documents = [evidence for evidence, _ in model.documents]
    main = attacked_first(documents)
    return pictures.draw(model.folder, documents, None if main is None else comparable.images_if_there(main))


def _told(model: Model) -> str:
    recipe = model.recipe
    extra = "" if recipe.extra_data in (None, "none") else f", extra data {recipe.extra_data}"
    size = f"{model.parameters:,} parameters ({size_of(model.parameters)})"
    return f"{recipe.architecture}, {size}; {recipe.dataset}; {method_of(recipe.name)}{extra}"


def _evidence_part(evidence: Any, file: Path, number: int) -> str:
    doc = evidence.doc
    stated = doc["dataset"]
    images = f"{doc['counts']['n']} images of {stated['id']} {stated['split']}"
    heading = f"{evidence.threat_model}, {doc['protocol']['name']}, {images}"
    where = f"evidence/{quote(file.name)}"
    rows = [
        (name, f"{left.correct} / {left.n}", _percent(left.value), _interval(left))
        for name, left in stages(evidence)
    ]
    return (
        f"<h2>{escape(one_line(heading))}</h2>\n"
        f"{plain_table(('after', 'correct', '%', 'exact 95 % interval'), rows)}\n"
        f'<p><a href="{escape(where)}">The Evidence</a>: the verdict on every image.</p>\n'
        f'<figure><a href="figure{number}.png"><img src="figure{number}.png" alt="Accuracy after each '
        "attack, iterations to break, accuracy per class and perturbations; the numbers are in the table "
        'above and in the Evidence"></a></figure>'
    )


def _picture(evidence: Any, file: Path) -> bytes:
    from robustzoo.reports import figure  # torch and matplotlib
    from robustzoo.verification import comparable

    # Without the images the fooling points are shown alone.
    shown, _ = figure.choose_pictures(evidence, file, comparable.images_if_there(evidence), 6)
    return figure.png(evidence, shown)


def _card(text: str) -> str:
    """The card's text as HTML. Raw HTML of a card stays text, what it folds away excepted."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    lines = split_card(text)[1].strip().splitlines()
    body = "\n".join(lines[1:] if lines and lines[0].startswith("# ") else lines)
    scrolled = '<div class="scroll" role="region" aria-label="Table of the card" tabindex="0"><table>'
    shown = reader.render(body).replace("<table>", scrolled).replace("</table>", "</table></div>")
    shown = _OTHER_PICTURE.sub(r"\1", shown)  # of the author's notes: it would be fetched, and is not here
    shown = _FOLDED.sub(r"<details><summary>\1</summary>\2</details>", shown)
    return shown.replace("<h2", "<h3").replace("</h2>", "</h3>").replace("<pre>", '<pre tabindex="0">')
