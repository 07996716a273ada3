"""Recipe: everything that decides a trained model, flat and frozen, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS, DatasetSpec
from robustzoo.registry.composition import composed, neutral
from robustzoo.registry.dataset_files import OWN, is_own
from robustzoo.registry.digests import json_digest
from robustzoo.registry.fields import FIELDS, Values, read_value, unknown_field, write_value
from robustzoo.registry.names import OWN as OWN_IN_NAMES
from robustzoo.registry.names import IncompatibleName, UnknownName, parse
from robustzoo.registry.overrides import OF_IMAGES, apply_overrides
from robustzoo.registry.rules import PAIRED, check_together, extra_data_of, originals_per_batch

SCHEMA = "robustzoo.recipe/1"
_LONGEST_SOURCE = 1000  # a change of a change names the sources before it


@dataclass(frozen=True, kw_only=True)
class Recipe(Values):
    """The training of one model. `fields.FIELDS` gives the meaning, unit and range of every value.

    Attributes:
        name: registry name, or for a changed recipe `<base_name>+<first 8 digits of its digest>`, with
            `own-NAME` in the place of the dataset where the images are one's own.
        base_name: the registry name it is, or was changed from.
        init: "random" or "timm:TAG@REVISION".
        l2_reg, trh_gamma: coefficient of |theta|^2 over all parameters without and with TrH; never both.
        sources: field -> where its value comes from; in neither equality nor the digest.

    Raises:
        RobustzooError: a value outside its range, values that contradict each other, one without source.
    """

    name: str
    base_name: str
    sources: Mapping[str, str] = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        for key in FIELDS:
            object.__setattr__(self, key, read_value(key, getattr(self, key)))
        object.__setattr__(self, "sources", dict(self.sources))
        check_together(self.science)
        _check_identity(self)
        missing = [key for key in FIELDS if not self.sources.get(key)]
        if missing:
            raise RobustzooError(
                f"no source for {', '.join(missing)}: add to sources where each value comes from"
            )
        for key in FIELDS:
            _check_source(key, self.sources[key])
        expected = changed_name(self.base_name, self.digest, self.dataset)
        if self.name != expected and (self.name != self.base_name or is_own(self.dataset)):
            raise RobustzooError(
                f"name {self.name!r} is neither {self.base_name!r} nor that of these values, {expected!r}: "
                "take the latter"
            )

    @property
    def science(self) -> dict[str, Any]:
        """Every value that decides the training, by field; no name and no sources."""
        return {key: getattr(self, key) for key in FIELDS}

    @cached_property
    def digest(self) -> str:
        """sha256, as 64 hex digits, of the canonical JSON of the science fields."""
        return science_digest(self.science)

    @property
    def images(self) -> DatasetSpec:
        """Facts of the images that it classifies: of the catalog's row, or of one's own as the recipe has
        them (then without the number of test images)."""
        return self._spec(self.dataset)

    @property
    def trained_on(self) -> DatasetSpec:
        """The same of the images that it is trained on."""
        return self._spec(self.training_data)

    def _spec(self, dataset: str) -> DatasetSpec:
        if not is_own(dataset):
            return DATASETS[dataset]
        return DatasetSpec(
            key=dataset,
            title=f"{dataset.removeprefix(OWN)} (images of its author's own)",
            image_size=self.image_size,
            channels=self.channels,
            num_classes=self.num_classes,
            train_size=self.training_images or 0,
            test_size=0,
            mean=self.mean,
            std=self.std,
            normalisation_source=self.sources["mean"],
            licence="as its author states it",
            source=f"in its author's words: {self.sources['dataset']}",
        )

    @property
    def stated(self) -> list[str]:
        """The fields of its document and card: all but later ones at the value and source that they have by
        themselves."""
        return [key for key in FIELDS if (getattr(self, key), self.sources[key]) != neutral(key)]

    def to_json(self) -> dict[str, Any]:
        """A document for `json.dumps`; `from_json` gives the same recipe."""
        stated = self.stated
        return {
            "schema": SCHEMA,
            "name": self.name,
            "base_name": self.base_name,
            **{key: write_value(getattr(self, key)) for key in stated},
            "sources": {key: self.sources[key] for key in stated},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Recipe:
        """Read a whole document of `to_json`; later fields that it leaves out are not used.

        Raises:
            RobustzooError: an unknown or missing key, another schema, or a value that is not allowed.
        """
        check_keys(document)
        left_out = {key: unused for key in FIELDS if key not in document and (unused := neutral(key))}
        expected = ("schema", "name", "base_name", *FIELDS, "sources")
        missing = [key for key in expected if key not in document and key not in left_out]
        if missing:
            raise RobustzooError(
                f"the recipe lacks {', '.join(missing)}: write it with `robustzoo recipe NAME --json`"
            )
        values = {key: value for key, value in document.items() if key not in ("schema", "sources")}
        values |= {key: value for key, (value, _) in left_out.items()}
        sources = document["sources"] | {key: source for key, (_, source) in left_out.items()}
        return cls(**values, sources=sources)

    def cost(self) -> dict[str, Any]:
        """What training costs, in network passes: F forward, B backward to the input, T training step.

        `forward_equivalents` counts B as one F and T as three. Derivation, with n attack steps: n (F + B) for
        the attack, and F for the clean softmax of an attack on KL; T for AT and 2 T where the clean images
        are trained on too (TRADES, ALP, MART, and AT with S2O); AWP's ascent T for AT, else 2 T, SAM's as
        much as the training pass. What an attack needs for its start and what packages bring is not in it.
        `epochs` counts passes over the original training images.
        """
        forwards = self.attack_steps + (self.attack_loss == "kl")
        backwards = self.attack_steps
        paired = self.loss in PAIRED
        pairs = paired or "s2o" in self.defences or self.consistency_weight > 0
        trainings = (
            1 + pairs + ("awp" in self.defences) * (1 + paired) + (self.sam_rho is not None) * (1 + pairs)
        )
        steps = self.stop_after or self.total_steps
        images, originals = steps * self.batch_size, steps * originals_per_batch(self.science)
        split = self.training_images or self.trained_on.train_size
        return {
            "passes_per_step": (
                f"{'F + ' if forwards > backwards else ''}{backwards} (F + B) + "
                f"{f'{trainings} T' if trainings > 1 else 'T'}"
            ),
            "forward": forwards,
            "input_backward": backwards,
            "training": trainings,
            "forward_equivalents": forwards + backwards + 3 * trainings,
            "steps": steps,
            "images_seen": images,
            "generated_images_seen": images - originals,
            "epochs": round(originals / split, 2),
        }


def _check_identity(made: Recipe) -> None:
    """Refuse a recipe whose fixed fields are not those of its base name."""
    try:
        values, _ = composed(made.base_name)
    except (UnknownName, IncompatibleName) as error:
        raise RobustzooError(f"base_name: {error}") from error
    free = OF_IMAGES if is_own(made.dataset) else ()
    for key in FIELDS:
        if key not in free and not FIELDS[key].goes_with_name(values[key], getattr(made, key)):
            raise RobustzooError(
                f"{key}: {getattr(made, key)!r} does not go with {made.base_name}, which has "
                f"{values[key]!r}: take another base_name, or the values that "
                f"`robustzoo recipe {made.base_name} --json` prints"
            )


def science_digest(science: Mapping[str, Any]) -> str:
    """sha256 hex of the science fields as JSON with sorted keys and no spaces; see `Field.later`."""
    stated = {
        key: write_value(value)
        for key, value in science.items()
        if (unused := neutral(key)) is None or value != unused[0]
    }
    return json_digest(stated)


def changed_name(base_name: str, digest: str, dataset: str = "") -> str:
    """The name of a recipe that differs from the registry's. dataset: the recipe's, which names one's own."""
    return f"{named_after(base_name, dataset)}+{digest[:8]}"


def named_after(base_name: str, dataset: str) -> str:
    """The name of a changed recipe without its digest: base_name, but never a catalog's dataset for one's own
    images."""
    if not is_own(dataset):
        return base_name
    return str(replace(parse(base_name), dataset=OWN_IN_NAMES + dataset.removeprefix(OWN)))


def registered(name: str) -> Recipe:
    """The registry's recipe of a name.

    Raises:
        UnknownName, IncompatibleName: the name has none.
    """
    return changed(name, {}, "")


def changed(
    base_name: str,
    changes: Mapping[str, object],
    origin: str,
    *,
    base: Recipe | None = None,
    notes: Mapping[str, str] | None = None,
) -> Recipe:
    """`base` (default: the registry's recipe of base_name) with changes, under the name that they give it.

    Args:
        origin, notes: see `overrides.apply_overrides`.

    Raises:
        UnknownName, IncompatibleName: base_name has no recipe.
        RobustzooError: an unknown key or a value that is not allowed.
    """
    of_name, sources = composed(base_name)
    given, of = (of_name, sources) if base is None else (base.science, base.sources)
    values, sources = apply_overrides(given, of, changes, origin, notes, of_name)
    digest = science_digest(values)
    name = base_name if values == of_name else changed_name(base_name, digest, values["dataset"])
    return Recipe(name=name, base_name=base_name, sources=sources, **values)


def partial(
    made: Recipe, *, steps: int | None = None, images: int | None = None, generated: int | None = None
) -> Recipe:
    """The recipe of a training that stopped early or saw other data: another name, unless it is as asked.

    Args:
        made: what was asked for.
        steps: optimizer steps really taken; None: all.
        images: training images really used (of `training_data`, generated ones aside); None: all.
        generated: generated images that batches are really filled up from; None: as many as asked for.

    Raises:
        RobustzooError: steps or images below 1 or above what there is, or generated images where it has none.
    """
    done = {
        "stop_after": None if steps == made.total_steps else steps,
        "training_images": images if is_own(made.dataset) or images != made.trained_on.train_size else None,
        "extra_data": None if generated is None else extra_data_of(generated),
    }
    values = {key: getattr(made, key) for key in FIELDS}
    changes = {key: value for key, value in done.items() if value is not None}
    values, sources = apply_overrides(values, made.sources, changes, "what the training really did")
    digest = science_digest(values)
    name = made.name if digest == made.digest else changed_name(made.base_name, digest, made.dataset)
    return Recipe(name=name, base_name=made.base_name, sources=sources, **values)


def check_keys(document: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
    """Refuse a recipe document with unknown keys, another schema, or sources that are not texts of fields.

    Args:
        more: keys that are allowed beside the fields.

    Raises:
        RobustzooError: naming the key, and the nearest right one.
    """
    if not isinstance(document, Mapping):
        raise RobustzooError(
            f"a recipe is a JSON object, not {type(document).__name__}: see `robustzoo recipe NAME --json`"
        )
    known = dict.fromkeys(("schema", "name", "base_name", *FIELDS, *more, "sources"))
    for key in document:
        if key not in known:
            raise unknown_field(key, "in the recipe", known)
    if document.get("schema", SCHEMA) != SCHEMA:
        raise RobustzooError(
            f"schema {document['schema']!r} is not {SCHEMA!r}, so another version of robustzoo made it: "
            "write it again with `robustzoo recipe NAME --json`"
        )
    for key in ("name", "base_name"):
        if not isinstance(document.get(key, ""), str):
            raise RobustzooError(f"{key}: {document[key]!r} is not a text: expected a model name")
    sources = document.get("sources", {})
    if not isinstance(sources, Mapping):
        raise RobustzooError("sources must be an object, field -> text: see `robustzoo recipe NAME --json`")
    for key, text in sources.items():
        if key not in FIELDS:
            raise unknown_field(key, "in sources")
        _check_source(key, text)


def _check_source(key: str, text: object) -> None:
    """Refuse a source that is not one printable line: cards and tables print it beside the value.

    Raises:
        RobustzooError: naming the field.
    """
    if not isinstance(text, str) or not text.isprintable() or len(text) > _LONGEST_SOURCE:
        shown = f"{text!r}"[:80]
        raise RobustzooError(
            f"sources: {key} has {shown}; expected one line of at most {_LONGEST_SOURCE} printable characters"
        )
