"""A small reader of LaTeX tables: cells as text, spans expanded, marks kept; it knows no number."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TABLE = re.compile(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", re.DOTALL)
_MACRO = re.compile(r"\\newcommand\{\\(\w+)\}\{\\texttt\{(\w+)\}\}")
_RULES = re.compile(r"\\(?:toprule|midrule|bottomrule|hline)\b")


@dataclass(frozen=True)
class Text:
    """One cell: its plain text, and whether it is bold or underlined."""

    text: str
    bold: bool = False
    underlined: bool = False


def read_tables(tex: str) -> list[tuple[int, list[list[Text]]]]:
    """Every tabular of a document: the number of its table, and its rows of cells.

    A cell over n columns is followed by n - 1 empty ones.
    """
    tex = re.sub(r"(?<!\\)%.*", "", tex)
    macros = dict(_MACRO.findall(tex))
    return [
        (len(re.findall(r"\\begin\{table\*?\}", tex[: found.start()])), _rows(found[1], macros))
        for found in _TABLE.finditer(tex)
    ]


def _rows(body: str, macros: dict[str, str]) -> list[list[Text]]:
    _, body = _argument(body, 0)  # the columns
    rows = [_cells(_RULES.sub("", row), macros) for row in re.split(r"\\\\", body)]
    return [row for row in rows if any(cell.text for cell in row)]


def _cells(row: str, macros: dict[str, str]) -> list[Text]:
    cells, depth, start = [], 0, 0
    for position, character in enumerate(row + "&"):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "&" and depth == 0 and row[position - 1 : position] != "\\":
            cells += _cell(row[start:position].strip(), macros)
            start = position + 1
    return cells


def _cell(source: str, macros: dict[str, str]) -> list[Text]:
    span = 1
    if source.startswith("\\multicolumn"):
        count, rest = _argument(source, len("\\multicolumn"))
        _, rest = _argument(rest, 0)
        source, _ = _argument(rest, 0)
        span = int(count)
    bold, underlined = "\\textbf" in source, "\\underline" in source
    source = re.sub(r"\\(\w+)", lambda match: macros.get(match[1], match[0]), source)
    source = re.sub(r"\\(?:texttt|textbf|underline|footnotesize|small|em)\b|[{}$~`']", "", source)
    return [Text(" ".join(source.split()), bold, underlined), *[Text("")] * (span - 1)]


def _argument(text: str, start: int) -> tuple[str, str]:
    """The braced argument that begins at `start`, blanks aside, and what follows it."""
    start = text.index("{", start)
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position], text[position + 1 :]
    raise ValueError(f"unbalanced braces: {text[start : start + 80]!r}")
