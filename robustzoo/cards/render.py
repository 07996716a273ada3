"""The card: README.md of a model, made from its recipe and its evidence. Equal inputs give equal text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from robustzoo.cards import corruption_tables, head, imported_passages, passages
from robustzoo.cards.claims import Claim, eval_results
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import best_known
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import LAYOUT, bad_card, card_data, dump_block
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.composition import composed, former_sources
from robustzoo.registry.describe import describe, meaning
from robustzoo.registry.names import recipe_name
from robustzoo.registry.recipes import Recipe
from robustzoo.registry.threat_model import ThreatModel

# Of the first layout; notes repeat neither these nor a heading of their own card.
SECTIONS = (
    "Results",
    "Load",
    "Verify",
    "Recipe",
    "Train it again",
    "Data and licences",
    "Limits",
    "Citation",
    "Weights",
)


def render_card(
    recipe: Recipe | Imported,
    evidence: Evidence | Sequence[Evidence],
    weights_sha256: str,
    license: str,
    *,
    name: str | None = None,
    layout: int = LAYOUT,
) -> str:
    """The whole README.md: metadata with the claims, then the text for people.

    Args:
        recipe: of the model, or what its folder says of imported weights.
        evidence: one evaluation, or one for each threat model, protocol and subset that the card shall claim.
        weights_sha256: of model.safetensors.
        license: of the weights, as their author gave it: an SPDX identifier in the Hub's lower case; else
            "unknown".
        name: what to call the model; default: the recipe's name. With another name the card loads and
            verifies a folder, since the recipe's name stands for other weights.
        layout: of the text, one of `metadata.LAYOUTS`.

    Raises:
        CardError: no evidence, evidence of another model or of other weights, or contradicting claims.
    """
    documents = [evidence] if isinstance(evidence, Evidence) else list(evidence)
    if not re.fullmatch("[0-9a-f]{64}", weights_sha256):
        raise bad_card(f"weights_sha256: expected 64 lower-case hex digits, got {weights_sha256!r}")
    if not documents:
        raise bad_card(f"no evidence for {recipe.name}, so there is nothing to claim")
    for document in documents:
        _require_same_model(recipe, document, weights_sha256)
    claims = [Claim.from_evidence(document) for document in documents]
    name = recipe.name if name is None else name
    place = recipe.name if name == recipe.name == recipe.base_name else "FOLDER"
    lowest = best_known(documents)
    data = card_data(
        recipe,
        eval_results(claims),
        weights_sha256=weights_sha256,
        license=license,
        name=name,
        best_known=[found.to_json() for found in lowest],
        layout=layout,
    )
    first = layout == 1
    sections = [
        f"# {name}",
        passages.summary(recipe) if isinstance(recipe, Recipe) else imported_passages.summary(recipe),
        *([] if first else _head(recipe, documents, claims, place)),
        "## Results",
        results_table(documents),
        *map(_measured, documents),
        *map(passages.best_known, lowest),
        *(["## Load", passages.loading(recipe, place)] if first else []),
        "## Verify",
        passages.verifying(place + imported_passages.trust_option(recipe, place), documents),
        *_origin(recipe, documents, license, first),
        "## Weights",
        f"sha256 of `model.safetensors`: `{weights_sha256}`",
    ]
    return dump_block(data) + "\n" + "\n\n".join(sections) + "\n"


def _head(
    recipe: Recipe | Imported, documents: Sequence[Evidence], claims: Sequence[Claim], place: str
) -> list[str]:
    """What the second layout has above the results."""
    return [
        table([head.HEADER, *head.glance_rows(claims)]),
        head.pictures(documents),
        "## Use it in three lines",
        passages.loading(recipe, place, image=True),
        "## Intended use and limits",
        head.intended(recipe),
        _limits(recipe, documents),
    ]


def _limits(recipe: Recipe | Imported, documents: Sequence[Evidence]) -> str:
    if isinstance(recipe, Imported):
        return imported_passages.limits(recipe, documents)
    return passages.limits(recipe, documents)


def _folded(title: str, text: str) -> str:
    """Text that a click unfolds; blank lines keep it Markdown."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _measured(document: Evidence) -> str:
    """How the numbers of one Evidence were measured; of corruptions with what each of them leaves."""
    if not corruption_tables.is_about(document):
        return passages.measured_on(document)
    said = html.escape(corruption_tables.sentence(document), quote=False)
    return f"{said}\n\n{table(corruption_tables.rows(document))}"


def _origin(recipe: Recipe | Imported, documents: Sequence[Evidence], license: str, first: bool) -> list[str]:
    """The sections that say where the model comes from, from "Recipe" to "Citation"."""
    if isinstance(recipe, Imported):
        values = (
            f"{table(imported_passages.values_table(recipe))}\n\nDigest of these values: `{recipe.digest}`"
        )
        described = f"{values}{imported_passages.trusting(recipe)}"
        training, cited = imported_passages.TRAINING, imported_passages.citation()
        licences = imported_passages.licences(recipe, license)
    else:
        described, training = recipe_table(recipe), passages.training(recipe)
        licences, cited = passages.licences(recipe, license), passages.citation(recipe)
        if not first:
            described = _folded(f"All {len(recipe.stated)} values, with meaning and source", described)
    return [
        "## Recipe",
        described,
        "## Train it again",
        training,
        "## Data and licences",
        licences,
        *(["## Limits", _limits(recipe, documents)] if first else []),
        "## Citation",
        cited,
    ]


def _require_same_model(recipe: Recipe | Imported, evidence: Evidence, weights_sha256: str) -> None:
    model = evidence.doc["model"]
    if recipe_name(model["name"], model["sha256"]) != recipe.name:
        raise bad_card(f"the evidence is about {model['name']}, the recipe about {recipe.name}")
    if model["sha256"] != weights_sha256:
        raise bad_card(f"the evidence is about weights {model['sha256']}, the card about {weights_sha256}")


def results_table(documents: Sequence[Evidence]) -> str:
    """Clean accuracy once a subset, then each robust accuracy with what broke the rest."""
    rows = [["accuracy", "attack", "correct / n", "%", "exact 95 % interval", "first broken by"]]
    shown: set[str] = set()
    for document in documents:
        doc = document.doc
        images = f"{doc['dataset']['id']}, {doc['dataset']['split']}, {doc['dataset']['subset']}"
        if images not in shown:
            shown.add(images)
            rows.append([*clean_row(document.clean_accuracy), ""])
        broken = document.doc["counts"]["broken_by"]
        by_attack = ", ".join(
            f"{m['attack']}: {broken.get(m['attack'], 0)}" for m in doc["protocol"]["members"]
        )
        if corruption_tables.is_about(document):
            by_attack = ", ".join(f"{k}: {n}" for k, n in corruption_tables.broken_by(document).items())
        row = robust_row(document.threat_model, doc["protocol"]["name"], document.robust_accuracy)
        rows.append([*row, by_attack])
    return table(rows)


def clean_row(accuracy: Accuracy) -> list[str]:
    """The five cells of the results table that say how many clean images are right."""
    return ["clean", "none", *_numbers(accuracy)]


def robust_row(threat_model: ThreatModel, protocol: str, accuracy: Accuracy) -> list[str]:
    """The five cells of the results table that say how many images withstood a protocol."""
    return [f"**robust**, {passages.threat(threat_model)}", f"`{protocol}`", *_numbers(accuracy)]


def _numbers(accuracy: Accuracy) -> list[str]:
    return [f"{accuracy.correct} / {accuracy.n}", f"**{accuracy.percent}**", accuracy.interval]


def recipe_table(recipe: Recipe) -> str:
    """Every value that the recipe states, with its meaning and its source, and the digest of them all.

    A value that is the registry's has the registry's source, now or at its training, whatever a folder says;
    the source of a changed one is its author's word.
    """
    values, sources = composed(recipe.base_name)
    rows = [["value", "", "meaning", "source"]]
    stated = recipe.stated
    for key, value, source in describe(recipe):
        if key not in stated:
            continue
        if getattr(recipe, key) == values[key]:
            former = (key, source) in former_sources()
            source = source if former else sources[key]
        else:
            source = f"in its author's words: {source}"
        rows.append([f"`{key}`", value, meaning(key, getattr(recipe, key)), source])
    return f"{table(rows)}\n\nDigest of these values: `{recipe.digest}`"


def table_cells(line: str) -> list[str]:
    """The cells of a row that `table` wrote; none for another line."""
    if not line.lstrip().startswith("|"):
        return []
    return [
        html.unescape(cell.strip().replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]
    ]


def table(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first row is the header. Cells hold no HTML: `<` and `&` are written out."""
    header, *body = [[html.escape(c, quote=False).replace("|", "\\|") for c in row] for row in rows]
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
