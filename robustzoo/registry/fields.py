"""The fields of a recipe, their only table: type, range and meaning. `rules.py` has what is between them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.extensions import KEY, REFUSED, TIMM, Arguments, is_outside
from robustzoo.registry.names import did_you_mean
from robustzoo.registry.threat_model import ThreatModel


@dataclass(frozen=True)
class Field:
    """One value of a recipe.

    Attributes:
        kind: "int", "float", "bool", "text", "texts", "floats", "arguments" or "threat model".
        about: what it means, with its unit.
        low, high: inclusive bounds of a number; `above` is an exclusive lower bound, `below` an upper one.
        choices: the allowed texts; empty: any. optional: None ("none" on the command line) is allowed.
        fixed: given by the model's name, so no override may change it.
        open: it may name what no table has instead, with a colon: see `outside`.
        later: added when digests were already published. At its value in `tables/unused.csv`, which must mean
            what recipes meant before it, a recipe leaves it out of its digest, document and card.
    """

    kind: str
    about: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    fixed: bool = False
    open: bool = False
    later: bool = False

    def goes_with_name(self, of_name: Any, value: Any) -> bool:
        """Whether a recipe of a name whose value is `of_name` may have this one."""
        if not self.fixed or value == of_name:
            return True
        if isinstance(value, tuple):
            return self.open and tuple(item for item in value if not is_outside(item)) == of_name
        return self.open and is_outside(value)

    @property
    def expected(self) -> str:
        """What a valid value looks like, in words."""
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("at least", self.low),
                ("at most", self.high),
                ("above", self.above),
                ("below", self.below),
            )
            if bound is not None
        ]
        text = f"one of {', '.join(self.choices)}" if self.choices else _KINDS[self.kind]
        return " ".join([text, " and ".join(bounds)]).strip() + (" (or none)" if self.optional else "")


_KINDS = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "text": "a text",
    "texts": "texts, separated by commas",
    "floats": "finite numbers, separated by commas",
    "arguments": f"a JSON object of keyword arguments without {', '.join(REFUSED)}",
    "threat model": "a threat model such as linf:8/255",
}
_KIND_OF = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "text",
    "tuple[str, ...]": "texts",
    "tuple[float, ...]": "floats",
    "Arguments": "arguments",
    "ThreatModel": "threat model",
}

_LONGEST_TEXT = 1000  # characters
_MANY = 10**9  # more of anything is a slip of the keyboard


def _value(about: str, **rules: Any) -> Any:
    return dataclasses.field(metadata={"about": about, **rules})


@dataclass(frozen=True, kw_only=True)
class Values:
    """Every value that decides a training, in the order in which recipes print them."""

    architecture: str = _value("key of the catalog", fixed=True, open=True)
    model_args: Arguments | None = _value("keyword arguments of timm's network", later=True)  # noqa: RUF009
    drop_path: float = _value("rate of stochastic depth in training", low=0, below=1, later=True)
    dataset: str = _value("key of the catalog", fixed=True)
    threat_model: ThreatModel = _value("norm and radius trained against, pixels in [0, 1]")  # noqa: RUF009
    loss: str = _value("robust loss", fixed=True, open=True)
    defences: tuple[str, ...] = _value("modifiers of the loss", fixed=True, open=True)
    package_args: Arguments | None = _value("arguments by PACKAGE:NAME", later=True)  # noqa: RUF009
    image_size: int = _value("height and width in pixels", low=1, fixed=True)
    channels: int = _value("image channels", low=1, fixed=True)
    num_classes: int = _value("classes", low=2, fixed=True)
    classes: tuple[str, ...] | None = _value(
        "names of the classes in order, of images of one's own", fixed=True, later=True
    )
    mean: tuple[float, ...] = _value("subtracted from pixels inside the model")
    std: tuple[float, ...] = _value("divides centred pixels inside the model", above=0)
    patch_stride: int | None = _value(
        "pixels from one patch to the next; none: the network's own", low=1, later=True
    )
    init: str = _value("initial weights: random, timm:TAG@REVISION (or two, joined by +), or file:SHA256")
    kernel_downsampling: str | None = _value(
        "how a larger first kernel of the initial checkpoint is brought to the network's size",
        choices=("cubic", "bilinear", "nearest", "block_sum"),
    )
    training_data: str = _value("key of the dataset whose training images are used")
    training_images: int | None = _value(
        "training images really used; none: the whole split", low=1, high=_MANY
    )
    extra_data: str = _value("generated images mixed into every batch")  # see _FORMS
    extra_fraction: float = _value("share of generated images in a batch", low=0, below=1)
    total_steps: int = _value("optimizer steps, length of the schedules", low=1, high=_MANY)
    stop_after: int | None = _value(
        "optimizer steps really taken; none: all of total_steps", low=1, high=_MANY
    )
    batch_size: int = _value("images in one optimizer step, over all ranks", low=1, high=_MANY)
    warmup_steps: int = _value("steps of linear learning-rate warm-up", low=0, high=_MANY)
    optimizer: str = _value(
        "optimizer; weight decay is coupled in both", choices=("sgd", "adam", "adamw"), open=True
    )
    base_lr: float = _value("learning rate after warm-up", above=0)
    layer_decay: float | None = _value(
        "factor of the rate from a layer to the one before it; none: one rate", above=0, high=1, later=True
    )
    momentum: float = _value("momentum of sgd, first beta of adam", low=0, below=1)
    lr_schedule: str = _value("decay to 0 after warm-up", choices=("cosine", "linear", "multistep"))
    lr_milestones: tuple[float, ...] | None = _value(
        "shares of total_steps after which multistep divides the learning rate by 10",
        above=0,
        below=1,
        later=True,
    )
    l2_reg: float = _value("coefficient of |theta|^2 without TrH", low=0)
    gradient_clipping: float = _value("largest global gradient norm; 0: no clipping", low=0)
    augmentation: str = _value(
        "fb: flip and random brightness; crop: random resized crop and flip",
        choices=("none", "fb", "crop", "shift"),
    )
    brightness: float = _value("range of the additive brightness, pixels in [0, 1]", low=0, high=1)
    cutmix: bool = _value("pairs of images are cut and mixed, and their labels with them")
    attack_steps: int = _value("PGD steps in training", low=1, high=_MANY)
    attack_warmup_steps: int = _value(
        "steps over which the radius trained against grows from 0 to epsilon", low=0, high=_MANY
    )
    attack_step_ratio: float = _value("PGD step = ratio * epsilon / steps", above=0)
    attack_start: str = _value(
        "uniform in the ball, or 0.001 N(0, 1)", choices=("uniform", "gaussian", "label")
    )
    attack_loss: str = _value("what PGD maximises", choices=("ce", "kl"))
    loss_weight: float | None = _value(
        "weight of the loss's second term (TRADES' KL, ALP's pairing, MART's KL)", above=0
    )
    label_smoothing: float = _value(
        "share of the label that all classes have alike, in the outer loss", low=0, below=1, later=True
    )
    random_smoothing: bool = _value("the share of the others is drawn anew for each image", later=True)
    consistency_weight: float = _value(
        "of the divergence of predictions at the attack's start and end, growing from 0", low=0, later=True
    )
    loss_stop_gradient: bool = _value("the clean softmax is a constant in the loss")
    mart_bce_input: str | None = _value("input of the CE term in MART's boosted CE", choices=("adv", "clean"))
    trh_lambda: float | None = _value("weight of the trace", low=0)
    trh_schedule: str | None = _value("lambda over the steps", choices=("constant", "linear", "multistep"))
    trh_form: str = _value("of the trace's term", choices=("linear", "log", "relative"), later=True)
    trh_gamma: float | None = _value("coefficient of |theta|^2 with TrH, in place of l2_reg", low=0)
    trh_stop_gradient: bool = _value("the clean softmax is a constant in the trace")
    s2o_weight: float | None = _value(
        "alpha: share of S2O's loss in the CE part of the loss", above=0, below=1
    )
    s2o_diagonal: float | None = _value("c: S2O's weight of the true class", above=0, below=1)
    awp_delta: float | None = _value("size of AWP's perturbation relative to the weights", above=0)
    awp_warmup_steps: int | None = _value(
        "first optimizer steps without AWP's perturbation", low=0, high=_MANY
    )
    swa_decay: float | None = _value("weight of the old average in SWA", above=0, below=1)
    swa_warmup: bool = _value("the first averages forget faster: (1 + t) / (10 + t)", later=True)
    sam_rho: float | None = _value(
        "distance that SAM climbs before the gradient is taken", above=0, later=True
    )
    sam_adaptive: bool = _value("ASAM: distances relative to each weight", later=True)


def _field(declared: dataclasses.Field[Any]) -> Field:
    kind, _, none = str(declared.type).partition(" | ")
    return Field(_KIND_OF[kind], optional=bool(none), **declared.metadata)


FIELDS: dict[str, Field] = {declared.name: _field(declared) for declared in dataclasses.fields(Values)}

_TAG, _REVISION = r"[A-Za-z0-9_.\-]+", r"(?:[0-9a-f]{40}|unpinned)"
_INIT = re.compile(
    rf"random|timm:(?:{_TAG}@{_REVISION}|{_TAG}\+{_TAG}@{_REVISION}\+{_REVISION})|file:[0-9a-f]{{64}}",
    re.ASCII,
)

_BROUGHT = (re.compile(rf"[a-z0-9_]+|{KEY}", re.ASCII), "a key of the catalog, or PACKAGE:NAME")

# Texts with a form of their own, and what the form is in words.
_FORMS = {
    "architecture": (
        re.compile(rf"[a-z0-9_]+|{TIMM}[a-z0-9_]+", re.ASCII),
        "a key of the catalog, or timm:NAME of timm.list_models() without a tag (weights are init's)",
    ),
    "loss": _BROUGHT,
    "defences": _BROUGHT,
    "optimizer": _BROUGHT,
    "init": (
        _INIT,
        "random, timm:TAG@REVISION (40 hex digits, or unpinned); a local file is given to training with "
        "--init PATH",
    ),
    "extra_data": (
        re.compile(r"none|ddpm(?::[1-9][0-9]{0,8})?", re.ASCII),
        "none, ddpm, or ddpm:N with N generated images, below a thousand million",
    ),
}


def unknown_field(key: object, where: str, known: Mapping[str, Any] | None = None) -> RobustzooError:
    """The error for a key that no recipe has."""
    choices = list(FIELDS if known is None else known)
    return RobustzooError(
        f"unknown key {key!r} {where}: expected a field of a recipe.{did_you_mean(str(key), choices)} "
        f"`robustzoo recipe NAME` prints all of them."
    )


def read_value(key: str, value: object) -> Any:
    """The typed value of one field, from text (command line, tables) or from a JSON or Python value.

    Raises:
        RobustzooError: unknown key, wrong type, or outside the field's range.
    """
    field = FIELDS.get(key)
    if field is None:
        raise unknown_field(key, "in a recipe")
    if field.optional and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    try:
        typed = _READERS[field.kind](value)
    except RobustzooError as error:
        raise RobustzooError(f"{key}: {error}") from error
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise _refused(key, field, value) from error
    chosen = not field.choices or typed in field.choices or (field.open and is_outside(typed))
    if not chosen or not _in_range(field, typed):
        raise _refused(key, field, value)
    form, words = _FORMS.get(key, (None, ""))
    items = typed if isinstance(typed, tuple) else (typed,)
    if form is not None and not all(form.fullmatch(item) for item in items):
        raise RobustzooError(f"{key}: {value!r} is not allowed: expected {words}")
    return typed


def write_value(value: Any) -> Any:
    """The JSON value of a field's typed value."""
    if isinstance(value, ThreatModel):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def value_text(typed: Any) -> str:
    """A field's typed value as `--set KEY=VALUE` takes it."""
    return _text(write_value(typed))


def _text(value: object) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value)


def _refused(key: str, field: Field, value: object) -> RobustzooError:
    shown = f"{str(value)[:80]!r}" if isinstance(value, str) else f"{value!r}"[:80]
    return RobustzooError(f"{key}: {shown} is not allowed: expected {field.expected}")


def _in_range(field: Field, typed: Any) -> bool:
    if field.kind not in ("int", "float", "floats"):
        return True
    return all(
        (field.low is None or number >= field.low)
        and (field.high is None or number <= field.high)
        and (field.above is None or number > field.above)
        and (field.below is None or number < field.below)
        for number in (typed if isinstance(typed, tuple) else (typed,))
    )


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    return int(value)


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number + 0.0  # -0.0 and 0.0 are one value, with one digest


def _read_bool(value: object) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_text(value: object) -> str:
    # One printable line: tables and cards show it.
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > _LONGEST_TEXT:
        raise TypeError
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip() not in ("", "none"))
    if not isinstance(value, (list, tuple)):
        raise TypeError
    return tuple(_read_text(item) for item in value)


def _read_floats(value: object) -> tuple[float, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not items:
        raise TypeError
    return tuple(_read_float(item) for item in items)


def _read_threat_model(value: object) -> ThreatModel:
    return ThreatModel.parse(value)  # type: ignore[arg-type]  # refuses other types itself


_READERS: dict[str, Callable[[object], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "text": _read_text,
    "texts": _read_texts,
    "floats": _read_floats,
    "arguments": Arguments.read,
    "threat model": _read_threat_model,
}
