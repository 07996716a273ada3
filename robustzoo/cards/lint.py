"""What can be wrong with a card and seen without weights, data or network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from robustzoo.cards.claims import Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import shard_problem
from robustzoo.cards.imported import Imported, is_imported, method_tags
from robustzoo.cards.metadata import CardError, read_block, stated_name
from robustzoo.cards.render import results_table
from robustzoo.cards.rendered import first_difference
from robustzoo.cards.visible import differences
from robustzoo.registry.names import IncompatibleName, UnknownName, check_compatible, parse
from robustzoo.registry.recipes import Recipe

_EXPECTED = {"library_name": "timm", "pipeline_tag": "image-classification"}
_NEEDED = ("license", "library_name", "pipeline_tag", "tags", "datasets", "metrics", "model-index")
_SHA256 = re.compile("[0-9a-f]{64}")
_SPDX = re.compile("[a-z0-9][a-z0-9.+-]*")
# A slash at the start of a word and another one later, C:\\x, file:///x or ~/x; 8/255 and URLs are none.
_ABSOLUTE = re.compile(
    r"(?<![\w.:/\\~<)-])/[A-Za-z_][\w.-]*(?:/[\w.-]+)+|\b[A-Za-z]:\\\w+|\bfile://\S+|(?<!\w)~/\w\S*"
)


def lint_card(
    text: str, recipe: Recipe | Imported | None = None, evidence: Evidence | Sequence[Evidence] | None = None
) -> list[str]:
    """Every problem found in a card, as sentences; an empty list is a good card.

    Args:
        text: the whole README.md.
        recipe: what the card should describe; name, digest and threat model are compared.
        evidence: what the card should claim, all of it and nothing else.
    """
    try:
        block = read_block(text)
    except CardError as error:
        return [error.problem]
    documents = [evidence] if isinstance(evidence, Evidence) else list(evidence or [])
    if parts := [problem for document in documents if (problem := shard_problem(document.doc))]:
        return parts
    problems = [*_metadata(block), *_paths(text)]
    try:
        claims = Claim.from_card(text)
    except CardError as error:
        return [*problems, error.problem]
    problems += _name(claims[0].model_name, recipe)
    problems += _body(text, block, claims)
    if documents:
        problems += _table(text, documents)
    if recipe is not None:
        problems += _recipe(block, claims, recipe)
    if evidence is not None:
        problems += _evidence(block, claims, documents)
    if recipe is not None and documents:
        problems += _rendered(text, recipe, documents)
    return problems


def _metadata(block: dict[str, Any]) -> Iterator[str]:
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
    if not _SHA256.fullmatch(str(_ours(block).get("weights_sha256"))):
        yield "metadata lacks robustzoo.weights_sha256, 64 hex digits"
    if any(key in ("verified", "verifyToken") for key in _keys(block.get("model-index"))):
        yield "model-index sets verified or verifyToken, which belong to the Hub"


def _ours(block: dict[str, Any]) -> dict[str, Any]:
    ours = block.get("robustzoo")
    return ours if isinstance(ours, dict) else {}


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
    if is_imported(name):
        return
    base = name.partition("+")[0] if recipe is not None and name == recipe.name else name
    try:
        check_compatible(parse(base))
    except (UnknownName, IncompatibleName) as error:
        yield f"model-index names {name!r}: {error}"


def _body(text: str, block: dict[str, Any], claims: Sequence[Claim]) -> Iterator[str]:
    """The text for people must say what the metadata says."""
    body = text.split("\n---", 1)[-1]
    sha256 = _ours(block).get("weights_sha256")
    if isinstance(sha256, str) and sha256 not in body:
        yield "the text does not state the sha256 of the weights"
    name = claims[0].model_name
    place = (
        name
        if stated_name(text, name) is None and "+" not in name and not is_imported(name)
        else "local-dir:FOLDER"
    )
    if f'robustzoo.load("{place}")' not in body:
        yield f'the text does not say how to load the model: robustzoo.load("{place}")'
    yield from differences(text, claims, sha256 if isinstance(sha256, str) else None)


def _table(text: str, documents: Sequence[Evidence]) -> Iterator[str]:
    """The rows of the results table as the evidence gives them, with what broke the images."""
    stated = text.splitlines()
    for row in results_table(documents).splitlines():
        if row not in stated:
            yield f"the results table lacks the evidence's row {row}"


def _rendered(text: str, recipe: Recipe | Imported, documents: Sequence[Evidence]) -> Iterator[str]:
    """Everything else: the text must be what `robustzoo card` would write, but for the author's notes."""
    try:
        problem = first_difference(text, recipe, documents)
    except CardError as error:
        problem = error.problem
    if problem is not None:
        yield f"the card is not what recipe and evidence give: {problem}"


def _recipe(block: dict[str, Any], claims: Sequence[Claim], recipe: Recipe | Imported) -> Iterator[str]:
    if claims[0].model_name != recipe.name:
        yield f"model-index names {claims[0].model_name}, the recipe is {recipe.name}"
    if _ours(block).get("recipe_digest") != recipe.digest:
        stated = _ours(block).get("recipe_digest")
        yield f"robustzoo.recipe_digest is {stated}, the recipe's is {recipe.digest}"
    if all(claim.threat_model != recipe.threat_model for claim in claims):
        yield f"no claim is about the recipe's threat model {recipe.threat_model}"
    tags = block.get("tags")
    for tag in (recipe.threat_model.norm, *method_tags(recipe)):
        if isinstance(tags, list) and tag not in tags:
            yield f"tags lack {tag!r}"


def _evidence(block: dict[str, Any], claims: Sequence[Claim], documents: Sequence[Evidence]) -> Iterator[str]:
    supported = {_terms(claim): claim for claim in map(Claim.from_evidence, documents)}
    for claim in claims:
        own = supported.pop(_terms(claim), None)
        if own is None:
            yield f"no evidence for the claim {claim.threat_model}, {claim.protocol} on {claim.subset}"
            continue
        for name, (stated, found) in claim.differences(own).items():
            yield f"{claim.threat_model}, {claim.protocol}: {name} is {stated}, the evidence says {found}"
    for claim in supported.values():
        yield f"the evidence for {claim.threat_model}, {claim.protocol} on {claim.subset} is not claimed"
    sha256 = _ours(block).get("weights_sha256")
    for document in documents:
        if document.doc["model"]["sha256"] != sha256:
            yield f"the card is about weights {sha256}, the evidence about {document.doc['model']['sha256']}"


def _terms(claim: Claim) -> tuple[Any, ...]:
    return claim.threat_model, claim.protocol, claim.dataset_id, claim.split, claim.subset
