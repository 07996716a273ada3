"""The sentences of an imported model's card, in place of those that speak of a recipe."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from robustzoo.cards import passages
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.imported import PYTHON, Imported
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.recipes import Recipe

TRAINING = "It was not trained here: see its authors' publication."


def summary(imported: Imported) -> str:
    """What the model is, in one paragraph."""
    title = (
        "other images than the catalog's" if imported.dataset is None else DATASETS[imported.dataset].title
    )
    built = (
        f"`{imported.architecture}`"
        if imported.code_file is None
        else f"built by `{imported.architecture.removeprefix(PYTHON)}` of `{imported.code_file}`"
    )
    return (
        "An image classifier that others trained, imported to be measured under perturbations of at most "
        f"**{passages.threat(imported.threat_model)}**, pixels in [0, 1].\n\n"
        f"- Network: {built}.\n"
        f"- Images: {title}; {imported.num_classes:,} classes, "
        f"{imported.image_size} x {imported.image_size} pixels, {imported.channels} channels.\n"
        f"- Weights: {_text(imported.part)} of `{_text(imported.file)}`.\n\n"
        "How it was trained is its authors' to say. Each number below is a count of images made with "
        "robustzoo, and the verdict on every single image is in `evidence/`."
    )


def values_table(imported: Imported) -> list[list[str]]:
    """Rows of every value that the folder states."""
    document = imported.to_json()
    shown = {key: value if isinstance(value, str) else json.dumps(value) for key, value in document.items()}
    return [["value", ""], *([f"`{key}`", text] for key, text in shown.items())]


def licences(imported: Imported, license: str) -> str:
    """Of the weights and of the images that they were measured on."""
    lines = [f"- Weights: `{license}`, as their importer states it."]
    if imported.dataset is not None:
        d = DATASETS[imported.dataset]
        lines.append(f"- Test images: {d.title}; {d.source}. Licence: {d.licence}.")
    return "\n".join([*lines, "- Training images: see the authors' publication."])


def trust_option(described: Recipe | Imported, place: str) -> str:
    """What commands that build the network need beside its folder."""
    code = described.code_file if isinstance(described, Imported) else None
    return "" if code is None else f" --trust {place}/{code}"


def trusting(imported: Imported) -> str:
    """What to say beside the commands where code of the folder must run."""
    if imported.code_file is None:
        return ""
    return (
        f"\n\nIts network is built by code in `{imported.code_file}`, sha256 `{imported.code_sha256}`, which "
        f'never runs unless asked for: read it, then give `trust="FOLDER/{imported.code_file}"`, on the '
        f"command line `--trust FOLDER/{imported.code_file}`."
    )


def limits(imported: Imported, documents: Sequence[Evidence]) -> str:
    """What the numbers do not say."""
    trained = (
        f"It was imported as a model for {passages.threat(imported.threat_model)}; what it was trained "
        "against is its authors' to say."
    )
    return passages.limits_of(documents, trained, imported.dataset)


def citation() -> str:
    """BibTeX of the attacks alone."""
    entry = passages.bibtex([passages.ATTACK_PAPER])
    return f"Of the attacks; that of the model is its authors' to give:\n\n{entry}"


def _text(value: str) -> str:
    return html.escape(value, quote=False).replace("|", "\\|").replace("`", "'")
