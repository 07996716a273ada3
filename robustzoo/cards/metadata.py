"""The YAML block at the head of a card: written for the Hub, read without trusting it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robustzoo.cards.imported import Imported, method_tags
from robustzoo.errors import RobustzooError
from robustzoo.streams import one_line

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

    from robustzoo.registry.recipes import Recipe

TASK = "image-classification"
_NEXT_STEP = (
    "measure with `robustzoo evaluate NAME --out FOLDER`, then write the card with `robustzoo card FOLDER`"
)
# Of the text below the metadata: what is written now, and what was and still stands. A card is checked by
# rendering it again, so each is rendered as long as there are cards that have it.
LAYOUT, LAYOUTS = 2, (1, 2)
LARGEST_CARD = 1_000_000  # characters; ours have about 10,000
_LARGEST_METADATA = 200_000  # characters; a claim takes about 600
_DEEPEST = 30  # levels of nesting; ours have 8
# YAML's tag -> how JSON spells such a number. YAML 1.1 knows octal, base 60 and underscores besides, and 1.2
# reads the same digits otherwise.
_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile("-?(0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][+-]?[0-9]+)?"),
}
_MERGE = "tag:yaml.org,2002:merge"
_BLOCK = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# Where the Hub keeps a data set under another name than the registry does.
HUB_DATASETS = {
    "imagenet": "ILSVRC/imagenet-1k",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}


class CardError(RobustzooError):
    """A card or a claim that cannot be used. `problem` is the message without the next step."""

    def __init__(self, problem: str, next_step: str | None = None) -> None:
        super().__init__(problem if next_step is None else f"{problem}\nNext: {next_step}")
        self.problem = problem


def bad_card(problem: str) -> CardError:
    """The error for a card or claim that only a new measurement, or a new card from it, can mend."""
    return CardError(problem, _NEXT_STEP)


def card_data(
    recipe: Recipe | Imported,
    results: Sequence[EvalResult],
    *,
    weights_sha256: str,
    license: str,
    name: str | None = None,
    best_known: Sequence[dict[str, Any]] = (),
    layout: int = LAYOUT,
) -> ModelCardData:
    """The metadata of a model's card.

    Args:
        results: the claims, as `claims.eval_results` gives them.
        license: as of `render_card`.
        name: of the model; default: the recipe's.
        best_known: the lowest robust accuracies over several evaluations, as `BestKnown.to_json` gives them.
        layout: of the card's text; the first one is not stated.
    """
    from huggingface_hub import ModelCardData

    ours: dict[str, Any] = {
        "schema": 1,
        "weights_sha256": weights_sha256,
        "recipe_digest": recipe.digest,
        **({"layout": layout} if layout > 1 else {}),
    }
    if best_known:
        ours["best_known"] = list(best_known)
    tags = {} if isinstance(recipe, Imported) else timm_tags(recipe)
    return ModelCardData(
        license=license,
        library_name="timm",
        pipeline_tag=TASK,
        tags=["robustzoo", "adversarial-robustness", recipe.threat_model.norm, *method_tags(recipe)],
        datasets=[HUB_DATASETS.get(dataset, dataset) for dataset in _datasets(recipe, results)],
        metrics=["accuracy"],
        base_model=f"timm/{next(iter(tags))}" if len(tags) == 1 else [f"timm/{tag}" for tag in tags] or None,
        model_name=name or recipe.name,
        eval_results=list(results),
        robustzoo=ours,
    )


def _datasets(recipe: Recipe | Imported, results: Sequence[EvalResult]) -> list[str]:
    """The catalog's dataset of the model, or those that it was measured on."""
    if recipe.dataset is not None:
        return [recipe.dataset]
    return list(dict.fromkeys(result.dataset_type for result in results))


def timm_tags(recipe: Recipe) -> dict[str, str]:
    """timm tag of each initial checkpoint (a hybrid has two) -> its revision; empty for other weights."""
    source, _, rest = recipe.init.partition(":")
    if source != "timm":
        return {}
    tags, _, revisions = rest.partition("@")
    return dict(zip(tags.split("+"), revisions.split("+"), strict=True))


def dump_block(data: ModelCardData) -> str:
    """The metadata as a front-matter block, fences included.

    Texts that a YAML reader could take for a number (epsilon, digests) are quoted; YAML 1.1 and 1.2 disagree
    about some of them.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = '"' if value[:1].isdigit() or re.fullmatch("[0-9a-f]{64}", value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    body = yaml.dump(data.to_dict(), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return f"---\n{body}---\n"


def read_block(text: str) -> dict[str, Any]:
    """The metadata of a card as plain data.

    Raises:
        CardError: too large, no block at the head, malformed YAML, aliases or deep nesting, or not a
            mapping of texts.
    """
    import yaml

    if len(text) > LARGEST_CARD:
        raise bad_card(f"the card has {len(text)} characters, expected at most {LARGEST_CARD}")
    source, _ = split_card(text)
    if len(source) > _LARGEST_METADATA:
        raise bad_card(
            f"the card's metadata have {len(source)} characters, expected at most {_LARGEST_METADATA}"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_costly(yaml.parse(source, loader))
        reader = loader(source)
        node = reader.get_single_node()
        _refuse_ambiguous(node)
        block = None if node is None else reader.construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, CardError):
            raise
        where = " ".join(str(error).split())  # on one line: parts of it are the card's own
        if "nesting depth" in where:  # libyaml's own limit
            raise bad_card(f"the card's metadata is nested more than {_DEEPEST} levels deep") from error
        raise bad_card(f"the card's metadata is not YAML: {one_line(where)}") from error
    if not isinstance(block, dict) or not all(isinstance(key, str) for key in block):
        raise bad_card(
            f"the card's metadata must be a mapping of names to values, got {type(block).__name__}"
        )
    return block


def split_card(text: str) -> tuple[str, str]:
    """The YAML of a card and the text behind it. Raises: CardError for no metadata."""
    text = text.lstrip("\ufeff")
    match = _BLOCK.match(text)
    if match is None:
        raise bad_card("the card has no metadata: expected a YAML block between two lines '---' at its head")
    return match["yaml"], text[match.end() :]


def _refuse_costly(events: Iterable[Any]) -> None:
    """Raise CardError for deep nesting, for aliases, which let a short text stand for billions, and for tags,
    which make a text a number in the eyes of some readers."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise bad_card("the card's metadata uses YAML aliases (*name); write the values out")
        if getattr(event, "tag", None) is not None:
            raise bad_card(
                f"the card's metadata is not YAML without tags: {event.tag!r}; write the value without one"
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise bad_card(f"the card's metadata is nested more than {_DEEPEST} levels deep")


def _refuse_ambiguous(node: Any) -> None:
    """Raise CardError where readers differ in what they read: a key that a mapping has twice, a number that
    is not spelled as in JSON (0764 is 500 to some and 764 to others), a merged mapping."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        spelled = _NUMBERS.get(node.tag)
        if spelled is not None and not spelled.fullmatch(node.value):
            raise bad_card(
                f"the card's metadata has the number {node.value[:80]!r}, which readers of YAML take for "
                "different ones: write it in plain decimal digits"
            )
    elif isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if keys and (most := keys.most_common(1)[0])[1] > 1:
            raise bad_card(f"the card's metadata has the key {most[0][:80]!r} twice in one place")
        for key, value in node.value:
            if key.tag == _MERGE:
                raise bad_card("the card's metadata merges mappings (<<); write the values out")
            _refuse_ambiguous(key)
            _refuse_ambiguous(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_ambiguous(value)


@dataclass(frozen=True)
class Card:
    """A card whose metadata have been read: `text` is the whole README.md, `block` its metadata as data."""

    text: str
    block: dict[str, Any]

    @classmethod
    def read(cls, text: str) -> Card:
        """Raises: CardError as `read_block`."""
        return cls(text, read_block(text))

    @property
    def model_name(self) -> str | None:
        """The name of the model, or None."""
        index = self.block.get("model-index")
        model = index[0] if isinstance(index, list) and index else None
        return str(model.get("name")) if isinstance(model, dict) else None

    @property
    def weights_sha256(self) -> str | None:
        """The sha256 of model.safetensors that it states (`robustzoo.weights_sha256`), or None."""
        ours = self.block.get("robustzoo")
        stated = ours.get("weights_sha256") if isinstance(ours, dict) else None
        return stated if isinstance(stated, str) else None

    @property
    def layout(self) -> int:
        """Of the text: 1 where the metadata do not say. Raises: CardError for one that this version lacks."""
        ours = self.block.get("robustzoo")
        stated = ours.get("layout", 1) if isinstance(ours, dict) else 1
        if type(stated) is not int or stated not in LAYOUTS:
            raise CardError(
                f"the card has layout {stated!r}, and this version of robustzoo knows those to {LAYOUT}",
                "update robustzoo, or write the card anew with `robustzoo card FOLDER`",
            )
        return stated

    def results(self) -> tuple[str, list[EvalResult]]:
        """The model name and the results, read by huggingface_hub.

        Raises:
            CardError: no model-index, or one that huggingface_hub cannot read or that names several models.
        """
        from huggingface_hub import ModelCardData

        index = self.block.get("model-index")
        if not index:
            raise bad_card("the card has no model-index, so it claims nothing that could be verified")
        if not isinstance(index, list) or len(index) != 1:
            raise bad_card("the card's model-index must be a list of one model")
        try:
            # Given by name, so that a card which switches the checks off is one argument too many.
            data = ModelCardData(ignore_metadata_errors=False, **self.block)
            return str(data.get("model_name")), list(data.get("eval_results", []))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise bad_card(f"the card's model-index cannot be read: {error}") from error
