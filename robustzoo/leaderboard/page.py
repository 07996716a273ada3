"""One HTML page: tabs, a table that sorts and filters, a picture; from a file, by keyboard and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from robustzoo.streams import one_line

_HERE = Path(__file__).parent
_BREAKS = re.compile(r"[._](?=[A-Za-z])")  # where a long name may be broken
TABS = (
    ("index.html", "Verified: with evidence"),
    ("paper.html", "Reported: the paper"),
    ("robustbench.html", "Reported: RobustBench"),
)
# Largest number of parameters -> what to call it in the filter.
_SIZES = ((1e6, "below 1 M"), (1e7, "1 to 10 M"), (1e8, "10 to 100 M"), (float("inf"), "above 100 M"))


@dataclass(frozen=True)
class Cell:
    """text; where given its link, the number to sort by, and a smaller second line."""

    text: str
    href: str | None = None
    sort: float | None = None
    small: str = ""


@dataclass(frozen=True)
class TableRow:
    """id: of the row, which the picture's points name. filters: key -> value of the select boxes."""

    id: str
    cells: Sequence[Cell]
    filters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """heads: (title, whether it holds numbers), of which the first names the row. filters: (key, label)."""

    caption: str
    heads: Sequence[tuple[str, bool]]
    rows: Sequence[TableRow]
    filters: Sequence[tuple[str, str]]
    sorted_by: int


def size_of(parameters: int) -> str:
    """The class of a number of parameters, as the filter has it."""
    return next(name for most, name in _SIZES if parameters < most)


def document(title: str, body: str, *, up: str = "", active: str | None = None, script: bool = False) -> str:
    """A whole page around its body, with style and script inside: one file that needs no other.

    Args:
        up: path of the site's root from the page ("../").
        active: file name of the tab that the page is.
    """
    tabs = "".join(
        f'<li><a href="{up}{file}"{" aria-current=" + chr(34) + "page" + chr(34) if file == active else ""}>'
        f"{escape(name)}</a></li>"
        for file, name in TABS
    )
    code = f"<script>\n{_asset('page.js')}</script>\n" if script else ""
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(one_line(title))}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#table">Skip to the table</a>\n'
        f'<header><nav aria-label="Tables"><ul>{tabs}</ul></nav></header>\n'
        f"<main>\n{body}\n</main>\n"
        "<footer><p>Made by <code>robustzoo leaderboard build</code> from cards and evidence. Also as "
        f'<a href="{up}leaderboard.json">JSON</a>, <a href="{up}leaderboard.md">Markdown</a>.</p></footer>\n'
        f"{code}</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace").decode()  # a folder's name may hold bytes that are no text


def table(content: Table) -> str:
    """The form of its filters, then the table in a region that scrolls."""
    selects = "".join(
        f'<label>{escape(label)}<select name="{key}"><option value="">all</option>'
        + "".join(f"<option>{_text(value)}</option>" for value in _values(content.rows, key))
        + "</select></label>"
        for key, label in content.filters
    )
    heads = "".join(
        _head(name, numeric, at == content.sorted_by) for at, (name, numeric) in enumerate(content.heads)
    )
    return (
        f'<form hidden>{selects}<label>Search<input type="search" name="words" autocomplete="off"></label>'
        "</form>\n"
        f'<p class="faint"><span id="count" role="status">{len(content.rows)}</span> '
        "rows. A heading sorts.</p>\n"
        f'<div class="scroll" role="region" aria-label="{escape(content.caption)}" tabindex="0" id="table">\n'
        f'<table class="sortable"><thead><tr>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(_row(row, content.heads) for row in content.rows)
        + "\n</tbody></table></div>"
    )


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A small table without controls, its first column a row's name."""
    top = "".join(
        f'<th scope="col"{" class=" + chr(34) + "number" + chr(34) if at else ""}>{_text(name)}</th>'
        for at, name in enumerate(heads)
    )
    lines = [
        f'<tr><th scope="row">{_text(row[0])}</th>'
        + "".join(f'<td class="number">{_text(text)}</td>' for text in row[1:])
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll" role="region" aria-label="{_text(heads[0])}" tabindex="0">'
        f"<table><thead><tr>{top}"
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _head(name: str, numeric: bool, first: bool) -> str:
    kind = ' class="number"' if numeric else ""
    state = ("descending" if numeric else "ascending") if first else "none"
    return f'<th scope="col"{kind} aria-sort="{state}"><button type="button">{escape(name)}</button></th>'


def _row(row: TableRow, heads: Sequence[tuple[str, bool]]) -> str:
    data = "".join(f' data-{key}="{_text(value)}"' for key, value in row.filters.items())
    cells = [
        _cell(cell, numeric, "th" if at == 0 else "td")
        for at, (cell, (_, numeric)) in enumerate(zip(row.cells, heads, strict=True))
    ]
    return f'<tr id="{escape(row.id)}"{data}>{"".join(cells)}</tr>'


def _cell(cell: Cell, numeric: bool, tag: str) -> str:
    text = _BREAKS.sub(r"\g<0><wbr>", _text(cell.text)) if tag == "th" else _text(cell.text)
    if cell.href is not None:
        text = f'<a href="{escape(cell.href)}">{text}</a>'
    if cell.small:
        text += f" <small>{_text(cell.small)}</small>"
    kind = ' class="number"' if numeric else ' class="two"' if cell.small else ""
    scope = ' scope="row"' if tag == "th" else ""
    sort = "" if cell.sort is None else f' data-sort="{cell.sort!r}"'
    return f"<{tag}{scope}{kind}{sort}>{text}</{tag}>"


def _values(rows: Iterable[TableRow], key: str) -> list[str]:
    found = {row.filters[key] for row in rows if row.filters.get(key)}
    sizes = [name for _, name in _SIZES]
    return sorted(found, key=lambda value: (sizes.index(value) if value in sizes else 0, value))


def _text(text: str) -> str:
    return escape(one_line(text))


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
