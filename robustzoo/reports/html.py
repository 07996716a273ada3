"""A report as one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.signs import masking_signs
from robustzoo.reports.text import per_class, report, stages
from robustzoo.streams import one_line

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:68rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.25rem .6rem;"
    "text-align:right}th:first-child,td:first-child{text-align:left}img{max-width:100%}"
    "pre{background:#f5f5f5;padding:1rem;overflow:auto}.flag{background:#fff3cd;padding:.6rem 1rem}"
)


def html(evidence: Evidence, figure: bytes, notes: Iterable[str], others: Sequence[Evidence] = ()) -> str:
    """The whole document.

    Args:
        figure: of `figure.png`.
        notes: what else a reader must know.
        others: as in `report`.
    """
    doc = evidence.doc
    title = one_line(f"{doc['model']['name']} under {evidence.threat_model}")
    images = f"{doc['dataset']['id']} {doc['dataset']['split']}, {doc['dataset']['subset']}"
    broken = doc["counts"]["broken_by"]
    after = [
        [name, str(broken.get(name, 0) if at else ""), f"{a.correct} / {a.n}", a.percent, a.interval]
        for at, (name, a) in enumerate(stages(evidence))
    ]
    classes = [
        [r.name, str(r.clean.n), r.clean.percent, r.robust.percent, r.robust.interval]
        for r in per_class(evidence)
    ]
    image = base64.b64encode(figure).decode("ascii")
    flags = [f'<p class="flag">{escape(one_line(sign))}</p>' for sign in masking_signs(evidence, others)]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>Protocol {escape(one_line(doc['protocol']['name']))}; {escape(one_line(images))}: "
        f"{doc['counts']['n']} images. Robust accuracy under a fixed set of attacks is an upper bound "
        "on the true value.</p>",
        *flags,
        *(f"<p>{escape(one_line(note))}</p>" for note in notes),
        f'<img alt="accuracy after each attack, iterations, classes, perturbations" '
        f'src="data:image/png;base64,{image}">',
        "<h2>After each attack</h2>",
        _table(["attack", "broken", "correct", "%", "exact 95 % interval"], after),
        "<h2>Per class</h2>",
        _table(["class", "images", "clean", "robust", "95 % interval of robust"], classes),
        "<h2>In full</h2>",
        f"<pre>{escape(report(evidence, others=others, attacks=False))}</pre>",
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    return page.encode("utf-8", "replace").decode()  # a folder's name may hold bytes that are no text


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{escape(one_line(cell))}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return "<table>" + "\n".join(lines) + "</table>"
