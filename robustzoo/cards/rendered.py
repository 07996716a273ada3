"""A card's text is rendered: all of it must be what its evidence gives, but for the notes by its author."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from itertools import zip_longest

from robustzoo.cards.claims import Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import CardError, read_block, split_card, stated_name
from robustzoo.cards.render import render_card, robust_row, table_cells
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.recipes import Recipe

NOTES = "## Notes by the author"
_NOTES = re.compile(rf"^{NOTES}[ \t]*$", re.MULTILINE | re.IGNORECASE)


def split_notes(text: str) -> tuple[str, str]:
    """The generated part of a card and the notes by its author, from their heading on ("" without)."""
    found = _NOTES.search(text)
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])


def with_notes(text: str, notes: str) -> str:
    """A card with the notes of an older one behind it."""
    return f"{text}\n{notes}" if notes else text


def first_difference(
    text: str, recipe: Recipe | Imported, documents: Sequence[Evidence], license: str | None = None
) -> str | None:
    """The first line of a card that its recipe and evidence do not give, in words; None for equal texts.

    The metadata are compared as data, so that the order of keys does not matter; the text line by line. The
    name, bare or with the hash of the weights, is what the card says it is, and so is the licence where
    `license` is not given.

    Raises:
        CardError: no metadata, or evidence that is not about the card's weights.
    """
    block = read_block(text)
    stated_license = block.get("license")
    if license is None:
        license = stated_license if isinstance(stated_license, str) else "apache-2.0"
    ours = block.get("robustzoo")
    sha256 = str(ours.get("weights_sha256")) if isinstance(ours, dict) else ""
    wanted = render_card(
        recipe,
        documents,
        sha256,
        license,
        name=stated_name(text, recipe.name),
    )
    stated = split_card(split_notes(text)[0])
    given = split_card(wanted)
    if block != read_block(wanted):
        return _line("metadata", stated[0], given[0]) or "the metadata differ"
    return _line("text", stated[1].strip(), given[1].strip())


def require_rendered(
    text: str, recipe: Recipe | Imported, pairs: Sequence[tuple[Claim, Evidence]], license: str | None = None
) -> None:
    """Raise CardError where the card says anything else than its claims and the evidence behind them give.

    Args:
        pairs: each claim with its evidence, which differ at most in their counts: those are judged elsewhere,
            and so stand here as they are claimed.
        license: of the weights, as the folder's config.json states it; None: whatever the card says.
    """
    problem = first_difference(text, recipe, [_as_claimed(text, *pair) for pair in pairs], license)
    if problem is not None:
        raise CardError(
            f"the card is not what the folder's recipe and evidence give: {problem}",
            "write it anew with `robustzoo card FOLDER`. It may have been edited, or made by another version "
            f"of robustzoo. Text of your own belongs under a last heading `{NOTES}`, which is kept",
        )


def _line(where: str, stated: str, given: str) -> str | None:
    for claimed, found in zip_longest(_lines(stated), _lines(given)):
        if claimed is None and found is not None:
            return f"the {where} ends where {_shown(found[1])} should follow"
        if claimed is not None and found is None:
            return (
                f"line {claimed[0]} of the {where}, {_shown(claimed[1])}, follows where nothing more should"
            )
        if claimed is not None and found is not None and claimed[1] != found[1]:
            return (
                f"line {claimed[0]} of the {where} is {_shown(claimed[1])}, and should be {_shown(found[1])}"
            )
    return None if stated == given else f"the {where} has other blank lines"


def _lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines; blank ones left out, since a difference in them alone tells a reader nothing."""
    return [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _shown(line: str) -> str:
    return repr(line if len(line) <= 200 else f"{line[:197]}...")


def _as_claimed(text: str, claim: Claim, evidence: Evidence) -> Evidence:
    """The evidence with the counts of the claim, and those of the attacks as the card has them."""
    doc = copy.deepcopy(evidence.doc)
    counts = doc["counts"]
    claimed = (claim.clean_correct, claim.robust_correct)
    if claimed == (counts["clean_correct"], counts["robust_correct"]):
        return evidence
    counts["clean_correct"], counts["robust_correct"] = claimed
    doc["clean_accuracy"] = claim.clean_accuracy.to_json()
    doc["robust_accuracy"] = claim.robust_accuracy.to_json()
    counts["broken_by"] = _broken_by(text, claim, evidence) or counts["broken_by"]
    return Evidence(doc)


def _broken_by(text: str, claim: Claim, evidence: Evidence) -> dict[str, int] | None:
    """What each attack broke, as the claim's row has it; None where it cannot be read."""
    accuracy = Accuracy.of(claim.robust_correct, claim.n)
    row = robust_row(claim.threat_model, claim.protocol, accuracy)
    for cells in map(table_cells, text.splitlines()):
        if cells[: len(row)] == row and len(cells) > len(row):
            found = dict(re.findall(r"(\S+): (\d+)(?:, |$)", cells[len(row)]))
            if found.keys() == {member["attack"] for member in evidence.doc["protocol"]["members"]}:
                return {attack: int(broken) for attack, broken in found.items()}
    return None
