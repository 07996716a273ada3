"""What is wrong with a card: it is what its recipe and evidence render, and the notes of its author."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from robustzoo.cards.claims import Claim
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.head import ATTACKS, HEADER, PERTURBATIONS, attacks_svg, glance_rows
from robustzoo.cards.imported import Imported, is_imported
from robustzoo.cards.metadata import LARGEST_CARD, Card, CardError, read_block, split_card
from robustzoo.cards.notes import NOTES, notes_problem, split_notes
from robustzoo.cards.render import clean_row, render_card, robust_row, table, table_cells
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.names import (
    IncompatibleName,
    UnknownName,
    check_compatible,
    parse,
    unpublished_name,
)
from robustzoo.registry.recipes import Recipe, registered
from robustzoo.untrusted_files import read_text

_EXPECTED = {"library_name": "timm", "pipeline_tag": "image-classification"}
_NEEDED = ("license", "library_name", "pipeline_tag", "tags", "datasets", "metrics", "model-index")
_SHA256 = re.compile("[0-9a-f]{64}")
_SPDX = re.compile("[a-z0-9][a-z0-9.+-]*")
# A slash at the start of a word and another one later, C:\\x, file:///x or ~/x; 8/255 and URLs are none.
_ABSOLUTE = re.compile(
    r"(?<![\w.:/\\~<)-])/[A-Za-z_][\w.-]*(?:/[\w.-]+)+|\b[A-Za-z]:\\\w+|\bfile://\S+|(?<!\w)~/\w\S*"
)
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_COUNT = re.compile(r"\d+ / \d+")
_BROKEN = re.compile(r"they broke (\d+) of the (\d+) ")
# Each part ends where its last character first comes: no line takes long.
_IMAGES = re.compile(
    r"^`([^`\n]+)` at [^:\n]*: (\d+) images? \([^\n]*, subset `[^`\n]+`\), seed (\d+)", re.MULTILINE
)
_TOLERANCE = re.compile(r"A count may be off by (\d+(?: or \d+)*) images")
# A picture in a card that is kept elsewhere than in its folder.
_PICTURE = re.compile(rf"\]\([\w./:-]{{1,300}}/({re.escape(ATTACKS)}|{re.escape(PERTURBATIONS)})\)")
_WEIGHTS = re.compile(r"sha256 of `model\.safetensors`: `([^`]*)`")


def lint_card(
    text: str, recipe: Recipe | Imported | None = None, evidence: Evidence | Sequence[Evidence] | None = None
) -> list[str]:
    """Every problem found in a card without weights, data or network, as sentences; none: a good card.

    Args:
        text: the whole README.md.
        recipe: of the model; default: that of the registry name which the card gives, if it gives one.
        evidence: what the card should claim, all of it and nothing else; None: whether the text says what
            the metadata claims is all that is looked at.
    """
    try:
        card = Card.read(text)
    except CardError as error:
        return [error.problem]
    documents = [evidence] if isinstance(evidence, Evidence) else list(evidence or [])
    try:
        for document in documents:
            document.require_whole()
    except EvidenceError as error:
        return [error.problem]
    problems = [*_metadata(card), *_paths(text)]
    try:
        claims, _ = Claim.from_card(card), card.layout
    except CardError as error:
        return [*problems, error.problem]
    unnamed = [*_name(claims[0].model_name, recipe)]
    problems += [*unnamed, *_contradictions(card, claims)]
    if evidence is None or unnamed or (recipe is None and is_imported(claims[0].model_name)):
        return problems
    try:
        different = first_difference(card, recipe or registered(claims[0].model_name), documents)
    except CardError as error:
        different = error.problem
    if different is not None:
        problems.append(f"the card is not what recipe and evidence give: {different}")
    return problems


def require_rendered(
    card: Card, recipe: Recipe | Imported, pairs: Sequence[tuple[Claim, Evidence]], license: str | None = None
) -> None:
    """Raise CardError where the card says anything else than its claims and the evidence behind them give.

    Args:
        pairs: each claim with its evidence, which differ at most in their counts: those are judged elsewhere,
            and so stand here as they are claimed.
        license: of the weights, as the folder's config.json states it; None: whatever the card says.
    """
    problem = first_difference(card, recipe, [_as_claimed(card.text, *pair) for pair in pairs], license)
    if problem is not None:
        raise CardError(
            f"the card is not what the folder's recipe and evidence give: {problem}",
            "write it anew with `robustzoo card FOLDER`. It may have been edited, or made by another version "
            f"of robustzoo. Text of your own belongs under a last heading `{NOTES}`, which is kept",
        )


def require_same(card: Card, claims: Sequence[Claim]) -> None:
    """Raise CardError where the card tells people other numbers than machines, naming all of them.

    That is asked of every card, also of one that is about something else than its evidence.
    """
    problems = [*_contradictions(card, claims)]
    if problems:
        raise CardError(
            "the card's text and its metadata differ:\n- " + "\n- ".join(problems),
            "write the card anew from the folder's evidence, with `robustzoo card FOLDER`",
        )


def first_difference(
    card: Card, recipe: Recipe | Imported, documents: Sequence[Evidence], license: str | None = None
) -> str | None:
    """The first line of a card that its recipe and evidence do not give, in words; None for equal texts.

    The metadata are compared as data, so that the order of keys does not matter; the text line by line. The
    name, bare or with the hash of the weights, is what the card says it is, and so is the licence where
    `license` is not given.

    Raises:
        CardError: evidence that is not about the card's weights.
    """
    if license is None:
        license = card.block["license"] if isinstance(card.block.get("license"), str) else "unknown"
    sha256 = str(card.weights_sha256)
    qualified = unpublished_name(recipe.name, sha256)
    name = qualified if card.model_name == qualified else None
    wanted = render_card(recipe, documents, sha256, license, name=name, layout=card.layout)
    stated, given = split_card(split_notes(card.text)[0]), split_card(wanted)
    if card.block != read_block(wanted):
        return _line("metadata", stated[0], given[0]) or "the metadata differ"
    return _line("text", stated[1].strip(), given[1].strip())


def as_in_its_folder(text: str) -> str:
    """A card that is kept elsewhere, its two pictures named as the card in the folder names them. That one
    may name no others: whoever looks at it sees what was checked."""
    return _PICTURE.sub(r"](\1)", text)


def picture_problem(folder: Path, documents: Sequence[Evidence], layout: int) -> str | None:
    """What is wrong with the picture of the attacks in a folder, in words; the first layout has none."""
    if layout == 1:
        return None
    try:
        same = read_text(folder / ATTACKS, LARGEST_CARD) == attacks_svg(documents)
    except (OSError, UnicodeDecodeError):
        return f"the card's picture {ATTACKS} cannot be read"
    return None if same else f"the card's picture {ATTACKS} is not what the evidence gives: do not go by it"


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


def _metadata(card: Card) -> Iterator[str]:
    block = card.block
    for key in _NEEDED:
        if not block.get(key):
            yield f"metadata lacks {key}"
    for key, value in _EXPECTED.items():
        if block.get(key) and block[key] != value:
            yield f"{key} is {block[key]!r}, expected {value!r}"
    license = block.get("license")
    if license and not (isinstance(license, str) and _SPDX.fullmatch(license)):
        yield f"license {license!r} is not an SPDX identifier in lower case, for example apache-2.0"
    tags = block.get("tags")
    for tag in ("robustzoo", "adversarial-robustness"):
        if tags and (not isinstance(tags, list) or tag not in tags):
            yield f"tags lack {tag!r}"
    if not _SHA256.fullmatch(str(card.weights_sha256)):
        yield "metadata lacks robustzoo.weights_sha256, 64 hex digits"
    if any(key in ("verified", "verifyToken") for key in _keys(block.get("model-index"))):
        yield "model-index sets verified or verifyToken, which belong to the Hub"


def _keys(value: Any) -> Iterator[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        yield from map(str, value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _keys(child)


def _paths(text: str) -> Iterator[str]:
    for match in _ABSOLUTE.finditer(text):
        yield f"absolute path {match.group()!r}: it exists on one machine only"


def _name(name: str, recipe: Recipe | Imported | None) -> Iterator[str]:
    if recipe is not None and name == recipe.name:
        return
    if recipe is not None:
        yield f"model-index names {name}, the recipe is {recipe.name}"
    elif is_imported(name):
        return
    try:
        check_compatible(parse(name))
    except (UnknownName, IncompatibleName) as error:
        yield f"model-index names {name!r}: {error}"


def _contradictions(card: Card, claims: Sequence[Claim]) -> Iterator[str]:
    """Every number of the text that the metadata does not give, and of its results the other way round."""
    generated, notes = split_notes(card.text)
    if (problem := notes_problem(generated, notes)) is not None:
        yield problem
    body = generated.split("\n---", 1)[-1]
    sha256 = card.weights_sha256
    heading, name = _HEADING.search(body), claims[0].model_name
    if heading is not None and heading[1].strip() not in (name, unpublished_name(name, sha256 or "")):
        yield f"the heading names {heading[1].strip()!r}, the metadata {name!r}"
    stated, given = Counter(_stated_rows(body)), Counter(_given_rows(claims))
    for row in (given - stated).elements():
        yield f"the results table lacks the row that the metadata gives: {row}"
    for row in (stated - given).elements():
        yield f"the results table states what the metadata does not give: {row}"
    said, meant = Counter(_stated_sentences(body)), Counter(_given_sentences(claims))
    for sentence in (said - meant).elements():
        kind = sentence.partition(":")[0]
        right = "; ".join(other for other in (meant - said) if other.startswith(f"{kind}:"))
        yield f"the text states {sentence}, the metadata gives {right or 'no such sentence more'}"
    if card.layout > 1:
        given_head = table([HEADER, *glance_rows(claims)])
        if given_head not in body:
            yield f"the table at the top is not the one that the metadata gives:\n{given_head}"
    for stated_hash in _WEIGHTS.findall(body):
        if sha256 is not None and stated_hash != sha256:
            yield f"the text states the sha256 {stated_hash} of the weights, the metadata {sha256}"


def _row(cells: Sequence[str], broken: int) -> str:
    plain = " | ".join(cell.replace("*", "").replace("`", "") for cell in cells[:5])
    return f"{plain} | broken by attacks: {broken}"


def _stated_rows(body: str) -> Iterator[str]:
    """The results table; any row of any table with a count `k / n` belongs to it."""
    for cells in map(table_cells, body.splitlines()):
        if any(map(_COUNT.fullmatch, cells)):
            yield _row(cells, sum(map(int, re.findall(r": (\d+)(?:,|$)", cells[5] if cells[5:] else ""))))


def _given_rows(claims: Sequence[Claim]) -> Iterator[str]:
    shown: set[tuple[str, str, str]] = set()
    for claim in claims:
        images = (claim.dataset_id, claim.split, claim.subset)
        if images not in shown:
            shown.add(images)
            yield _row(clean_row(claim.clean_accuracy), 0)
        row = robust_row(claim.threat_model, claim.protocol, claim.robust_accuracy)
        yield _row(row, claim.clean_correct - claim.robust_correct)


def _stated_sentences(body: str) -> Iterator[str]:
    """The numbers below the results table, one sentence a claim; what is allowed may be said again."""
    for kind, pattern in (("broken of correct images", _BROKEN), ("protocol, images and seed", _IMAGES)):
        yield from (f"{kind}: {', '.join(numbers)}" for numbers in pattern.findall(body))
    yield from {f"allowed difference in images: {found}" for found in _TOLERANCE.findall(body)}


def _given_sentences(claims: Sequence[Claim]) -> Iterator[str]:
    for claim in claims:
        yield f"broken of correct images: {claim.clean_correct - claim.robust_correct}, {claim.clean_correct}"
        yield f"protocol, images and seed: {claim.protocol}, {claim.n}, {claim.seed}"
    tolerances = " or ".join(map(str, sorted({claim.tolerance for claim in claims})))
    yield f"allowed difference in images: {tolerances}"
