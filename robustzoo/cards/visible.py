"""What a card's text tells people must be what its metadata tells machines: every number, both ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from robustzoo.cards.claims import Claim
from robustzoo.cards.metadata import CardError
from robustzoo.cards.notes import notes_problem
from robustzoo.cards.render import clean_row, robust_row, table_cells
from robustzoo.cards.rendered import split_notes
from robustzoo.registry.names import unpublished_name

_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_COUNT = re.compile(r"\d+ / \d+")
_COLUMNS = ("correct / n", "percentage", "95 % interval")
_BROKEN = re.compile(r"they broke (\d+) of the (\d+) ")
# Each part ends where its last character first comes: no line takes long.
_IMAGES = re.compile(
    r"^`([^`\n]+)` at [^:\n]*: (\d+) images? \([^\n]*, subset `[^`\n]+`\), seed (\d+)", re.MULTILINE
)
_TOLERANCE = re.compile(r"A count may be off by (\d+(?: or \d+)*) images")
_WEIGHTS = re.compile(r"sha256 of `model\.safetensors`: `([^`]*)`")


def differences(text: str, claims: Sequence[Claim], weights_sha256: str | None = None) -> Iterator[str]:
    """Every number of the text that the metadata does not give, as sentences with both numbers.

    Args:
        text: the whole README.md.
        claims: those of its metadata.
        weights_sha256: of its metadata; None is not compared.
    """
    problem = notes_problem(*split_notes(text))
    if problem is not None:
        yield problem
    body = split_notes(text)[0].split("\n---", 1)[-1]
    heading = _HEADING.search(body)
    names = (claims[0].model_name, unpublished_name(claims[0].model_name, weights_sha256 or ""))
    if heading is not None and heading[1].strip() not in names:
        yield f"the heading names {heading[1].strip()!r}, the metadata {claims[0].model_name!r}"
    yield from _rows(body, claims)
    broken = [(c.clean_correct - c.robust_correct, c.clean_correct) for c in claims]
    yield from _sentences("broken and correct images", _BROKEN.findall(body), broken)
    measured = [(c.protocol, c.n, c.seed) for c in claims]
    yield from _sentences("protocol, number of images and seed", _IMAGES.findall(body), measured)
    allowed = " or ".join(map(str, sorted({claim.tolerance for claim in claims})))
    for stated in _TOLERANCE.findall(body):
        if stated != allowed:
            yield f"the text allows counts to be off by {stated} images, the metadata by {allowed}"
    for stated in _WEIGHTS.findall(body):
        if weights_sha256 is not None and stated != weights_sha256:
            yield f"the text states the sha256 {stated} of the weights, the metadata {weights_sha256}"


def require_same(text: str, claims: Sequence[Claim], weights_sha256: str | None = None) -> None:
    """Raise CardError where `differences` finds something, naming all of it."""
    problems = list(differences(text, claims, weights_sha256))
    if problems:
        raise CardError(
            "the card's text and its metadata differ:\n- " + "\n- ".join(problems),
            "write the card anew from the folder's evidence, with `robustzoo card FOLDER`",
        )


def _rows(body: str, claims: Sequence[Claim]) -> Iterator[str]:
    """The results table, cell by cell; any row of any table with a count `k / n` belongs to it."""
    found = [cells for cells in _table_rows(body) if any(map(_COUNT.fullmatch, cells))]
    wanted = _wanted_rows(claims)
    for row in list(wanted):
        match = next((cells for cells in found if cells[: len(row)] == row), None)
        if match is not None:
            wanted.remove(row)
            found.remove(match)
            yield from _broken_by(match, row, claims)
    for row in wanted:
        what = _what(row)
        other = next((cells for cells in found if cells[:2] == row[:2]), None)
        if other is None:
            yield f"the results table lacks {what}: the metadata gives {_plain(row[2])}, {_plain(row[3])}"
            continue
        found.remove(other)
        for column, stated, given in zip(_COLUMNS, [*other[2:5], "", "", ""], row[2:], strict=False):
            if stated != given:
                yield (
                    f"the results table states {_plain(stated) or 'nothing'} for {what} ({column}), "
                    f"the metadata gives {_plain(given)}"
                )
    for cells in found:
        shown = " | ".join(map(_plain, cells[:4]))
        yield f"the table row {shown} states numbers that the metadata does not give"


def _wanted_rows(claims: Sequence[Claim]) -> list[list[str]]:
    """The first five cells of every row that the claims give."""
    rows: list[list[str]] = []
    shown: set[tuple[str, str, str]] = set()
    for claim in claims:
        images = (claim.dataset_id, claim.split, claim.subset)
        if images not in shown:
            shown.add(images)
            rows.append(clean_row(claim.clean_accuracy))
        rows.append(robust_row(claim.threat_model, claim.protocol, claim.robust_accuracy))
    return rows


def _broken_by(cells: list[str], row: list[str], claims: Sequence[Claim]) -> Iterator[str]:
    """The last cell of a robust row, `attack: images, ...`, adds up to what is not robust any more."""
    counts = re.findall(r": (\d+)(?:,|$)", cells[5] if len(cells) > 5 else "")
    total = sum(map(int, counts))
    given = {c.clean_correct - c.robust_correct for c in claims if _row_of(c) == row}
    if given and total not in given:
        lost = " or ".join(map(str, sorted(given)))
        yield (
            f"the results table has {total} images broken by attacks for {_what(row)}, "
            f"the metadata gives {lost}"
        )


def _row_of(claim: Claim) -> list[str]:
    return robust_row(claim.threat_model, claim.protocol, claim.robust_accuracy)


def _what(row: Sequence[str]) -> str:
    """For people: "robust, L∞ 1/10 under aa-standard", or "clean"."""
    return _plain(row[0]) if row[1] == "none" else f"{_plain(row[0])} under {_plain(row[1])}"


def _plain(cell: str) -> str:
    return cell.replace("*", "").replace("`", "")


def _table_rows(body: str) -> Iterator[list[str]]:
    for line in body.splitlines():
        if cells := table_cells(line):
            yield cells


def _sentences(
    what: str, stated: Sequence[tuple[str, ...]], given: Iterable[Sequence[object]]
) -> Iterator[str]:
    """Numbers in the sentences below the table, one sentence a claim, in any order."""
    found, wanted = (Counter(", ".join(map(str, numbers)) for numbers in group) for group in (stated, given))
    odd, missing = found - wanted, wanted - found
    if odd:
        right = "; ".join(missing.elements()) or "no such sentence more"
        yield f"the text states {what} as {'; '.join(odd.elements())}, the metadata gives {right}"
