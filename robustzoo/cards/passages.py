"""The sentences of a card, one function a section; facts come from catalog, recipe and evidence."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from robustzoo.cards.claims import default_tolerance
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import ENSEMBLES
from robustzoo.cards.holdings import BestKnown
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import timm_tags
from robustzoo.cards.signs import masking_signs
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, DEFENCES, LOSSES, OWN_DATA_MARK
from robustzoo.registry.describe import changes, network_title, training_command
from robustzoo.registry.extensions import TIMM, is_outside, of_packages
from robustzoo.registry.fields import value_text
from robustzoo.registry.recipes import Recipe
from robustzoo.registry.rules import DDPM_IMAGES, generated_images
from robustzoo.registry.threat_model import CORRUPTIONS, ThreatModel

# Licence of the initial checkpoints that the catalog names, as their cards on the Hub state it.
_CHECKPOINT_LICENCES = {
    "vit_base_patch16_224.augreg_in21k": "apache-2.0",
    "vit_large_patch16_224.augreg_in21k": "apache-2.0",
}
_NORMS = {"linf": "L∞", "l2": "L2", "l1": "L1", "corruptions": "corruptions up to severity"}
# Keys of citations.bib.
_METHOD_PAPER, ATTACK_PAPER = "wang2023improving", "croce2020reliable"
_PAPERS = {
    "at": "madry2018towards",
    "trades": "zhang2019theoretically",
    "alp": "kannan2018adversarial",
    "mart": "wang2020improving",
    "s2o": "jin2022enhancing",
    "awp": "wu2020adversarial",
    "swa": "izmailov2018averaging",
}


def threat(threat_model: ThreatModel) -> str:
    """For people: "L∞ 8/255"."""
    return f"{_NORMS[threat_model.norm]} {threat_model.epsilon_text}"


def summary(recipe: Recipe) -> str:
    """What the model is, in one paragraph."""
    method = ", with ".join(map(_title, (recipe.loss, *recipe.defences)))
    return (
        "An image classifier trained to keep its answer under every perturbation of at most "
        f"**{threat(recipe.threat_model)}**, pixels in [0, 1].\n\n"
        f"- Network: {_network(recipe)}.\n"
        f"- Images: {recipe.images.title}; {recipe.num_classes:,} classes, "
        f"{recipe.image_size} x {recipe.image_size} pixels, {_plural(recipe.channels, 'channel')}.\n"
        f"{_own_classes(recipe)}"
        f"- Method: {method}.\n\n"
        "Part of robustzoo, a zoo of robust models whose numbers anyone can check again: each number below "
        "is a count of images, and the verdict on every single image is in `evidence/`." + _changed(recipe)
    )


def _network(recipe: Recipe) -> str:
    if recipe.architecture.startswith(TIMM):
        arguments = f" with `{value_text(recipe.model_args)}`" if recipe.model_args else ""
        return f"`{network_title(recipe.architecture)}` of timm{arguments}"
    row = ARCHITECTURES[recipe.architecture]
    if recipe.image_size not in row.networks:  # made for images of another size; nobody has counted it
        return row.title
    parameters = row.parameter_count(recipe.image_size, recipe.num_classes, recipe.patch_stride)
    return f"{row.title}; {parameters:,} parameters"


def _title(key: str) -> str:
    """What a loss or defence is, in words."""
    if is_outside(key):
        package, _, name = key.partition(":")
        return f"`{name}` of the package `{package}`"
    return (LOSSES | DEFENCES)[key].title


def _own_classes(recipe: Recipe) -> str:
    """The names of the classes of one's own images; the catalog's are known."""
    if recipe.classes is None:
        return ""
    shown = [f"{label} {_text(name)}" for label, name in enumerate(recipe.classes)]
    return f"- Classes: {', '.join(shown if len(shown) <= 100 else [*shown[:100], '...'])}.\n"


def _changed(recipe: Recipe) -> str:
    """For a changed recipe: from what, and how."""
    if recipe.name == recipe.base_name:
        return ""
    listed = ", ".join(f"`{key}={_text(value)}` (was {was})" for key, value, was in changes(recipe))
    return f"\n\n**A changed recipe**: that of `{recipe.base_name}` with {listed}. It is not that model."


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def measured_on(evidence: Evidence) -> str:
    """How one robust accuracy was measured."""
    doc = evidence.doc
    dataset, counts, protocol = doc["dataset"], doc["counts"], doc["protocol"]
    broken = sum(counts["broken_by"].values())
    return (
        f"`{protocol['name']}` at {threat(evidence.threat_model)}: {_plural(counts['n'], 'image')} "
        f"({_text(dataset['id'])}, {dataset['split']} split, subset `{dataset['subset']}`), "
        f"seed {doc['seed']}, {evidence.arithmetic} on {_text(doc['run']['device'])}, "
        f"micro-batch {doc['micro_batch_size']}. {_brought(evidence)}"
        "The attacks run in the order shown, each on what still stands; "
        f"they broke {broken} of the {counts['clean_correct']} images that were classified correctly.\n"
        f"Pixel digest `{dataset['digest']}`, protocol digest `{protocol['digest']}`."
        + "".join(f"\n\n**A sign against this number**: {sign}." for sign in masking_signs(evidence))
    )


def _brought(evidence: Evidence) -> str:
    how = transform_text(evidence)
    return "" if how is None else f"Images {how}. "


def transform_text(evidence: Evidence) -> str | None:
    """How a folder's images were brought to the model's size (height x width); None of other data."""
    stated = evidence.doc["dataset"].get("transform")
    if stated is None:
        return None
    size = " x ".join(map(str, stated["size"]))
    resize = " x ".join(map(str, stated["resize"] or ()))
    resize = f"{resize} ({stated['interpolation']})"
    how = {
        "cover": f"scaled to just cover {resize}, cropped at the centre to {size}",
        "squash": f"scaled to {resize}, cropped at the centre to {size}",
        "contain": f"scaled to fit into {resize}, with a border up to {size}",
        "crop": f"cropped at the centre to {size}, not scaled",
        "exact": f"taken as they are, all of {size}",
    }[stated["way"]]
    return f"{how}; those of {size} taken as they are" if stated["keeps_exact"] and stated["resize"] else how


def _text(value: str) -> str:
    """A value of the Evidence in a sentence: no HTML, no table."""
    return html.escape(value, quote=False).replace("|", "\\|")


def best_known(found: BestKnown) -> str:
    """The lowest robust accuracy over several evaluations of the same images."""
    names = " and ".join(f"`{name}`" for name in found.protocols)
    accuracy = found.accuracy
    return (
        f"**Best known robust accuracy** at {threat(found.threat_model)} on these images "
        f"({_text(found.subset)}): {accuracy.correct} of {accuracy.n}, {accuracy.percent} "
        f"(95 % interval {accuracy.interval}). That "
        f"is what {names} leave together. It is an upper bound like each of them, and the number of no "
        "single protocol: compare it with no AutoAttack result."
    )


def loading(recipe: Recipe | Imported, place: str, *, image: bool = False) -> str:
    """Three lines of code, and the trap beside them. `place`: the name to load, or the word FOLDER.

    image: from a file of an image to its class, as the second layout has it.
    """
    code = recipe.code_file if isinstance(recipe, Imported) else None
    trusted = "" if code is None else f', trust="{place}/{code}"'
    place = f"local-dir:{place}" if place == "FOLDER" else place
    mean, std = (", ".join(f"{v:g}" for v in values) for values in (recipe.mean, recipe.std))
    shape = f"{recipe.channels}, {recipe.image_size}, {recipe.image_size}"
    use = (
        f'pixels = model.transform()("image.png")  # float32 ({shape}) in [0, 1]: scaled and cropped\n'
        "label = int(model(pixels[None]).argmax())\n"
        if image
        else f"# logits = model(images), images: float32 (B, {shape}), pixels in [0, 1]\n"
    )
    return (
        "```python\n"
        "import robustzoo\n\n"
        f'model = robustzoo.load("{place}"{trusted})\n{use}'
        "```\n\n"
        "> **Pixels, not normalised input.** `robustzoo.load` gives a `PixelModel`: it takes pixels in "
        f"[0, 1], normalises inside and refuses anything else. {_alone(code)} expects normalised "
        f"input, `(pixels - mean) / std` with mean {mean} and std {std}. Normalising twice or not at all "
        "gives a wrong accuracy and no error."
    )


def _alone(code: str | None) -> str:
    """What of the folder takes normalised input. code: the file that builds the network; None: timm does."""
    if code is not None:
        return f"timm does not know this network; what `{code}` builds"
    return (
        "The folder also loads with timm alone, "
        '`timm.create_model("local-dir:FOLDER", pretrained=True)`, but a timm network'
    )


def verifying(place: str, documents: Sequence[Evidence]) -> str:
    """The commands that check the card, and what each can prove. place: what they are given."""
    if any(OWN_DATA_MARK in document.doc["dataset"]["id"] for document in documents):
        place += " --data DIR"  # that holds these images
    allowed = sorted({default_tolerance(document.doc["counts"]["n"]) for document in documents})
    return (
        "```bash\n"
        f"robustzoo verify {place}\n"
        f"robustzoo verify {place} --mode spot\n"
        f"robustzoo verify {place} --mode full\n"
        "```\n\n"
        "The first takes seconds: it recounts the clean accuracy and replays a stored fooling point for each "
        "broken image, which proves that the model is at most as robust as claimed. Only the others, which "
        "attack again with fresh randomness, can confirm that it is at least as robust: `spot` all images a "
        "little and randomly drawn ones with the whole protocol, until the claim is decided at 95 %; `full` "
        f"all of them. A count may be off by {' or '.join(map(str, allowed))} images, which allows for other "
        "seeds and processors."
    )


def training(recipe: Recipe) -> str:
    """The command that trains the model again."""
    changed = recipe.name != recipe.base_name
    what = "recipe.json" if changed else recipe.name
    note = " `recipe.json` is the value of `robustzoo.recipe` in `config.json`." if changed else ""
    if packages := sorted({key.partition(":")[0] for _, key in of_packages(recipe.science)}):
        note += f" It runs code of {' and '.join(f'`{name}`' for name in packages)}: install that too."
    return (
        "```bash\n"
        f"{training_command(recipe, what)}\n"
        "```\n\n"
        "Run it in a checkout of robustzoo, installed with `pip install '.[train]'`; with `python` in place "
        f"of `deepspeed` it trains in one process.{note}"
    )


def licences(recipe: Recipe, license: str) -> str:
    """Of the weights, of the data, and of the checkpoint that training started from."""
    tags = timm_tags(recipe)
    if recipe.init.startswith("file:"):
        start = (
            f"a local file, sha256 {recipe.init.removeprefix('file:')}, whose licence its author must state."
        )
    elif not tags:
        start = "random; no other model's weights are in this one."
    else:
        start = " ".join(
            f"[timm/{tag}](https://huggingface.co/timm/{tag}), revision {revision}. "
            f"Licence: {_CHECKPOINT_LICENCES.get(tag, 'see its card')}."
            for tag, revision in tags.items()
        )
    said = " (their author has not licensed them: ask before use)" if license == "unknown" else ""
    return f"- Weights: `{license}`{said}.\n{_images(recipe)}- Initial weights: {start}"


def _images(recipe: Recipe) -> str:
    """Lines for the images of training and test, and for generated ones."""
    test, trained = recipe.images, recipe.trained_on
    uses = [("Training and test", test)] if test == trained else [("Training", trained), ("Test", test)]
    lines = [f"- {use} images: {d.title}; {_text(d.source)}. Licence: {d.licence}.\n" for use, d in uses]
    generated = generated_images(recipe.extra_data)
    if generated == DDPM_IMAGES:
        lines.append(
            f"- Generated images, {recipe.extra_fraction:.0%} of each batch: 1M DDPM images "
            "(Gowal et al. 2021). Licence: see their publication.\n"
        )
    elif generated:
        lines.append(
            f"- Generated images, {recipe.extra_fraction:.0%} of each batch: {generated:,}, and not the 1M "
            "DDPM images of Gowal et al. 2021. Licence: their author must state it.\n"
        )
    return "".join(lines)


def limits(recipe: Recipe, documents: Sequence[Evidence]) -> str:
    """What the numbers do not say."""
    trained = f"The model was trained against {threat(recipe.threat_model)} alone."
    return limits_of(documents, trained, recipe.dataset)


def limits_of(documents: Sequence[Evidence], trained: str, dataset: str | None) -> str:
    """The same. trained: against what, in a sentence; dataset: key of the catalog, or None."""
    fewest = min((document.robust_accuracy for document in documents), key=lambda accuracy: accuracy.n)
    width = 100 * (fewest.high - fewest.low)
    lines = [
        "Robust accuracy under a fixed set of attacks is an upper bound: better attacks can only lower it.",
        f"{_plural(fewest.n, 'test image')} leave an interval {width:.1f} points wide. For a smaller "
        "difference between two models, compare the verdicts in `evidence/` image by image.",
        f"{trained} Larger perturbations, other "
        "norms, rotations, blur, patches and natural shifts are other questions.",
    ]
    weaker = sorted({document.doc["protocol"]["name"] for document in documents} - {*ENSEMBLES, CORRUPTIONS})
    if weaker:
        names = ", ".join(f"`{name}`" for name in weaker)
        lines.append(f"{names} tries less than `{ENSEMBLES[0]}`, so do not compare its numbers with that.")
    spec = DATASETS.get(dataset or "")
    if spec is not None and spec.caution:
        lines.append(spec.caution)
    lines.append("Fairness, calibration and privacy of the training data were not assessed.")
    return "\n".join(f"- {line}" for line in lines)


def citation(recipe: Recipe) -> str:
    """BibTeX of the method, the loss and the attacks."""
    keys = [
        _METHOD_PAPER,
        *(_PAPERS[part] for part in (recipe.loss, *recipe.defences) if part in _PAPERS),
        ATTACK_PAPER,
    ]
    role = "The method" if recipe.defences else "The baseline and its setting"
    parts = "the loss" + ", its modifiers" * any(part in _PAPERS for part in recipe.defences)
    return f"{role}, then {parts} and the attacks:\n\n{bibtex(keys)}"


def bibtex(keys: Sequence[str]) -> str:
    """The entries of citations.bib as a block of code."""
    entries = "\n\n".join(_citations()[key] for key in keys)
    return f"```bibtex\n{entries}\n```"


def _citations() -> dict[str, str]:
    """Key -> entry of citations.bib, which separates entries by blank lines."""
    text = files("robustzoo.cards").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = text.strip().split("\n\n")
    return {re.split("[{,]", entry)[1]: entry for entry in entries}
