"""What a reader of a card sees first: one line a threat model, a picture of its attacks, use, and limits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeVar

from robustzoo.cards import corruption_tables, passages
from robustzoo.cards.claims import Claim
from robustzoo.cards.evidence import Evidence, Verdict
from robustzoo.cards.imported import Imported
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.recipes import Recipe
from robustzoo.registry.threat_model import ThreatModel
from robustzoo.streams import one_line

_Stated = TypeVar("_Stated", Claim, Evidence)
# Where the pictures lie in the model folder: the first is checked with the card, the second is not.
ATTACKS, PERTURBATIONS = "evidence/accuracy.svg", "evidence/perturbations.png"
SHOWN = 6  # images of the second
HEADER = ["threat model", "attack", "images", "clean", "robust", "95 % interval"]
# Of the picture, in its own units.
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 640, 150, 60, 26, 34


def glance_rows(claims: Sequence[Claim]) -> list[list[str]]:
    """A row for each threat model, of the first claim under it: the main one, as the card orders them."""
    rows = []
    for claim in _first_of_each(claims):
        images = f"{claim.n:,} of {claim.dataset_id} {claim.split}"
        robust = claim.robust_accuracy
        rows.append(
            [
                passages.threat(claim.threat_model),
                f"`{claim.protocol}`",
                images,
                claim.clean_accuracy.percent,
                f"**{robust.percent}**",
                robust.interval,
            ]
        )
    return rows


def _first_of_each(stated: Sequence[_Stated]) -> list[_Stated]:
    """The first claim, or Evidence, of each threat model."""
    seen: set[ThreatModel] = set()
    found = []
    for one in stated:
        if one.threat_model not in seen:
            seen.add(one.threat_model)
            found.append(one)
    return found


def pictures(documents: Sequence[Evidence]) -> str:
    """The lines of Markdown that show the pictures, and say what is seen."""
    lines, main = [f"![Accuracy after each attack]({ATTACKS})"], attacked_first(documents)
    if main is not None and sum(main.doc["counts"]["broken_by"].values()):
        lines.append(f"![Images before and after an attack]({PERTURBATIONS})")
        lines.append(
            f"*Test images, changed within {passages.threat(main.threat_model)} until the model errs. From "
            "top to bottom: the image, the fooling point, the difference, magnified (the fooling points "
            "alone, where the images were not at hand).*"
        )
    return "\n\n".join(lines)


def attacked_first(documents: Sequence[Evidence]) -> Evidence | None:
    """The first that is about an attack, whose fooling points are shown."""
    return next((document for document in documents if not corruption_tables.is_about(document)), None)


def shown_perturbations(evidence: Evidence) -> list[Verdict]:
    """At most six broken images, spread over all of them."""
    broken = [verdict for verdict in evidence.verdicts if verdict.broken_by is not None]
    last = len(broken) - 1
    return [broken[i] for i in sorted({i * last // (SHOWN - 1) for i in range(SHOWN)})] if broken else []


def intended(recipe: Recipe | Imported) -> str:
    """What the model is for, in sentences; what its numbers do not say follows."""
    origin = "trained" if isinstance(recipe, Recipe) else "published"
    return (
        "For research on robustness and its measurement: attacking, comparing and fine-tuning a network that "
        f"was {origin} to withstand small perturbations. It is no guarantee, and no safeguard where a wrong "
        "answer does harm."
    )


def stages(evidence: Evidence) -> list[tuple[str, Accuracy]]:
    """(attack, accuracy of what is left after it), the clean accuracy first."""
    counts = evidence.doc["counts"]
    left, found = counts["clean_correct"], [("clean", evidence.clean_accuracy)]
    if corruption_tables.is_about(evidence):  # dozens, each with its row in a table of its own
        return [*found, ("all corruptions", evidence.robust_accuracy)]
    for member in evidence.doc["protocol"]["members"]:
        left -= counts["broken_by"].get(member["attack"], 0)
        found.append((member["attack"], Accuracy.of(left, counts["n"])))
    return found


def attacks_svg(documents: Sequence[Evidence]) -> str:
    """Accuracy from attack to attack as bars with exact 95 % intervals, a panel for each threat model.

    The same Evidence gives the same text. Each document must be a whole result, no shard.
    """
    parts: list[str] = []
    top = 0.0
    for document in _first_of_each(documents):
        found = stages(document)
        parts += _panel(document, found, top)
        top += _TOP + _ROW * len(found) + 14
    height = f"{top:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="13">\n'
        "<title>Accuracy after each attack, with exact 95 % intervals</title>\n"
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(document: Evidence, found: Sequence[tuple[str, Accuracy]], top: float) -> list[str]:
    doc = document.doc
    title = (
        f"{passages.threat(document.threat_model)}, {doc['protocol']['name']}, {doc['counts']['n']:,} images "
        f"of {doc['dataset']['id']} {doc['dataset']['split']}: correct after each attack, 95 % intervals"
    )
    parts = [f'<text x="10" y="{top + 20:.0f}" font-weight="bold">{escape(one_line(title))}</text>']
    for number, (name, accuracy) in enumerate(found):
        middle = top + _TOP + _ROW * (number + 0.5)
        label = "clean" if number == 0 else f"after {name}"
        colour = "#9aa5b1" if number == 0 else "#2f6fab"
        low, high, base = _x(accuracy.low), _x(accuracy.high), middle + 4.5
        parts += [
            f'<text x="{_LEFT - 8}" y="{base:.1f}" text-anchor="end">{escape(one_line(label))}</text>',
            f'<rect x="{_LEFT}" y="{middle - 9:.1f}" width="{_x(accuracy.value) - _LEFT:.1f}" height="18" '
            f'fill="{colour}"/>',
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} '
            f'{middle - 4:.1f}v8" stroke="#1b1f24" fill="none"/>',
            f'<text x="{_WIDTH - 10}" y="{base:.1f}" text-anchor="end">{escape(accuracy.percent)}</text>',
        ]
    return parts


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT - 16)
