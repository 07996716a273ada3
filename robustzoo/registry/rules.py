"""The rules between the fields of a recipe: what contradicts, and what would silently have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS
from robustzoo.registry.dataset_files import is_own
from robustzoo.registry.extensions import TIMM, is_outside, of_packages

Rule = tuple[bool, str]  # (broken, message with {field} places)

# Fields that a method needs and no other may have.
_TRH = ("trh_lambda", "trh_schedule", "trh_gamma")
_OF_DEFENCE = {
    "trh": _TRH,
    "s2o": ("s2o_weight", "s2o_diagonal"),
    "awp": ("awp_delta", "awp_warmup_steps"),
    "swa": ("swa_decay",),
}
DDPM_IMAGES = 1_000_000  # of the published file; source: Gowal et al. 2021
PAIRED = ("trades", "alp", "mart")  # losses of a clean and an adversarial image


def check_together(values: Mapping[str, Any]) -> None:
    """Refuse combinations of values that would be contradictory, or silently without effect.

    Raises:
        RobustzooError: naming the two values and how to settle them.
    """
    for broken, message in (
        *_length_rules(values),
        *_schedule_rules(values),
        *_image_rules(values),
        *_network_rules(values),
        *_package_rules(values),
        *_data_rules(values),
        *_threat_rules(values),
        *_loss_rules(values),
        *_defence_rules(values),
    ):
        if broken:
            raise RobustzooError(message.format_map(values))


def originals_per_batch(values: Mapping[str, Any]) -> int:
    """Images of a batch that are not generated: batch_size - round(extra_fraction * batch_size)."""
    size: int = values["batch_size"]
    return size - round(values["extra_fraction"] * size)


def generated_images(extra_data: str) -> int:
    """Images in the file of generated ones that an `extra_data` stands for; 0 for none."""
    kind, _, number = extra_data.partition(":")
    return 0 if kind == "none" else int(number or DDPM_IMAGES)


def extra_data_of(images: int) -> str:
    """The `extra_data` of so many generated images, at least 1; see `generated_images`."""
    return "ddpm" if images == DDPM_IMAGES else f"ddpm:{images}"


def _length_rules(values: Mapping[str, Any]) -> list[Rule]:
    return [
        (
            values["warmup_steps"] > values["total_steps"],
            "warmup_steps {warmup_steps} is more than total_steps "
            "{total_steps}: set both, or a smaller warmup_steps",
        ),
        (
            (values["stop_after"] or 0) >= values["total_steps"],
            "stop_after {stop_after} is not below total_steps {total_steps}: set stop_after=none",
        ),
        (
            values["attack_warmup_steps"] > values["total_steps"],
            "attack_warmup_steps {attack_warmup_steps} is more than total_steps "
            "{total_steps}, so that epsilon is never reached: set both, or a smaller attack_warmup_steps",
        ),
        (
            (values["awp_warmup_steps"] or 0) >= values["total_steps"],
            "awp_warmup_steps {awp_warmup_steps} is not below total_steps {total_steps}, so that AWP would "
            "never perturb: set a smaller awp_warmup_steps",
        ),
    ]


def _schedule_rules(values: Mapping[str, Any]) -> list[Rule]:
    milestones, multistep = values["lr_milestones"] or (), values["lr_schedule"] == "multistep"
    return [
        (
            multistep and not milestones,
            "lr_schedule multistep needs milestones: set lr_milestones too, for example "
            "lr_milestones=0.5,0.75 to divide the rate by 10 after a half and three quarters of the steps",
        ),
        (
            bool(milestones) and not multistep,
            "lr_milestones has no effect with lr_schedule {lr_schedule}: set lr_schedule=multistep, or "
            "lr_milestones=none",
        ),
        (
            list(milestones) != sorted(set(milestones)),
            "lr_milestones {lr_milestones} do not rise: give each once, in order",
        ),
        (
            bool(milestones) and min(milestones) * values["total_steps"] < values["warmup_steps"],
            "lr_milestones {lr_milestones} begin within the warm-up of {warmup_steps} of {total_steps} "
            "steps: set later ones, or a smaller warmup_steps",
        ),
    ]


def _image_rules(values: Mapping[str, Any]) -> list[Rule]:
    architecture = ARCHITECTURES.get(values["architecture"])  # its existence is the name's business
    size = values["image_size"]
    network = architecture.networks.get(size) if architecture else None
    stride, strides = values["patch_stride"], network.strides if network else {}
    known = f"{' or '.join(map(str, strides))}, or none, its own of 2" if strides else "none, its own"
    return [
        (
            stride is not None and network is not None and stride not in strides,
            f"patch_stride {{patch_stride}} is none that {{architecture}} has for {{image_size}}-pixel "
            f"images: expected {known}",
        ),
        (
            any(len(values[k]) not in (1, values["channels"]) for k in ("mean", "std")),
            "mean {mean} and std {std} must have one value, or one for each of the {channels} channels",
        ),
        (
            values["brightness"] > 0 and values["augmentation"] != "fb",
            "brightness {brightness} has no effect with augmentation {augmentation}: set augmentation=fb, "
            "or brightness=0",
        ),
        (
            values["kernel_downsampling"] is not None
            and values["init"] == "random"
            and not (network and network.downsampled),
            "kernel_downsampling {kernel_downsampling} has no effect with init random: set "
            "kernel_downsampling=none, or an initial checkpoint",
        ),
    ]


_SAID_ELSEWHERE = ("in_chans", "img_size", "drop_path_rate")  # arguments of timm that other fields give


def _network_rules(values: Mapping[str, Any]) -> list[Rule]:
    of_timm, arguments = values["architecture"].startswith(TIMM), values["model_args"] or {}
    return [
        (
            values["model_args"] is not None and not of_timm,
            "model_args {model_args} have no effect with architecture {architecture}, whose arguments the "
            "catalog has: set architecture=timm:NAME, or model_args=none",
        ),
        (
            of_timm and values["patch_stride"] is not None,
            "patch_stride {patch_stride} has no effect with architecture {architecture}: set "
            "patch_stride=none, and what timm's network takes in model_args",
        ),
        (
            any(name in arguments for name in _SAID_ELSEWHERE),
            f"model_args {{model_args}} may not have {', '.join(_SAID_ELSEWHERE)}: the channels and the size "
            "of the images are the dataset's, the rate of drop path is that of drop_path",
        ),
    ]


def _package_rules(values: Mapping[str, Any]) -> list[Rule]:
    named = [key for _, key in of_packages(values)]
    arguments = values["package_args"] or {}
    return [
        (
            any(key not in named or not isinstance(arguments[key], dict) for key in arguments),
            "package_args {package_args} are not an object of keyword arguments for each PACKAGE:NAME of the "
            f"recipe, which names {' and '.join(named) or 'none'}",
        ),
        (
            len(set(values["defences"])) < len(values["defences"]),
            "defences {defences} repeats one: keep each once",
        ),
    ]


def _data_rules(values: Mapping[str, Any]) -> list[Rule]:
    shape = {d.key: (d.image_size, d.channels, d.num_classes) for d in DATASETS.values()}
    wanted = shape.get(values["dataset"], ())  # its existence is the name's business, as is its shape
    fitting = [key for key in shape if shape[key] == wanted]
    own = is_own(values["dataset"])
    known = values["training_data"] in DATASETS
    images = DATASETS[values["training_data"]].train_size if known else 0
    extra = values["extra_data"]
    generated = extra != "none"
    return [
        (
            generated and extra != extra_data_of(generated_images(extra)),
            "extra_data {extra_data} is the published number of images: set extra_data=ddpm",
        ),
        (
            bool(fitting) and values["training_data"] not in fitting,
            "training_data {training_data} does not go with images of {channels}x{image_size}x{image_size} "
            f"and {{num_classes}} classes: expected {' or '.join(fitting)}",
        ),
        (
            not own and (values["training_images"] or 0) >= max(images, 1),
            f"training_images {{training_images}} is not below the {images:,} of {{training_data}}: set "
            "training_images=none",
        ),
        (
            own and (values["training_data"] != values["dataset"] or not values["training_images"]),
            "training_data {training_data} and training_images {training_images} do not go with dataset "
            "{dataset}, which is trained on its own images, and these are counted: set dataset=DIR",
        ),
        (
            own != (values["classes"] is not None)
            or (own and len(values["classes"]) != values["num_classes"]),
            "classes {classes} do not go with dataset {dataset} of {num_classes} classes: those of one's own "
            "images are named by the dataset.json of their folder (set dataset=DIR), the catalog's by nobody",
        ),
        (
            generated and wanted[:2] != (32, 3),
            "extra_data {extra_data} has images of 3x32x32, and {dataset} of "
            "{channels}x{image_size}x{image_size}: set extra_data=none",
        ),
        (
            generated != (values["extra_fraction"] > 0),
            "extra_fraction {extra_fraction} does not go with extra_data {extra_data}: set both (none and 0, "
            "or ddpm and a share)",
        ),
        (
            generated and not 0 < originals_per_batch(values) < values["batch_size"],
            "extra_fraction {extra_fraction} of a batch of {batch_size} leaves it without generated or "
            "without original images: set a larger batch_size, or extra_data=none and extra_fraction=0",
        ),
        (
            values["cutmix"] and values["loss"] == "mart",
            "cutmix true does not go with loss mart, which needs one class an image: set cutmix=false",
        ),
    ]


def _threat_rules(values: Mapping[str, Any]) -> list[Rule]:
    threat = values["threat_model"]
    pixels = values["channels"] * values["image_size"] ** 2
    return [
        (
            threat.norm not in ("linf", "l2"),
            "threat_model {threat_model} cannot be trained against: training attacks are linf and l2; a "
            "model of either can be evaluated in l1",
        ),
        (
            threat.norm == "l2" and threat.epsilon**2 > pixels,
            f"threat_model {{threat_model}} holds every image: no two of {pixels} pixels in [0, 1] are more "
            f"than {pixels**0.5:g} apart; set a smaller epsilon",
        ),
    ]


def _loss_rules(values: Mapping[str, Any]) -> list[Rule]:
    loss = values["loss"]
    return [
        (
            (values["loss_weight"] is not None) != (loss in PAIRED),
            "loss_weight {loss_weight} does not go with loss {loss}: trades, alp and mart recipes need one, "
            "and at has none; choose another name",
        ),
        (
            values["random_smoothing"] and values["label_smoothing"] == 0,
            "random_smoothing true has no effect with label_smoothing 0: set both, or random_smoothing=false",
        ),
        (
            values["consistency_weight"] > 0 and (loss != "at" or "s2o" in values["defences"]),
            "consistency_weight {consistency_weight} goes with loss at alone, where the start of the attack "
            "takes the place of clean images: take an at recipe without s2o, or set consistency_weight=0",
        ),
        (
            values["attack_start"] == "label" and values["threat_model"].norm != "linf",
            "attack_start label is the sign of a gradient, which is for linf: set attack_start=uniform, or a "
            "threat_model in linf",
        ),
        (
            values["label_smoothing"] > 0 and loss == "mart",
            "label_smoothing {label_smoothing} does not go with loss mart, which needs one class an image: "
            "set label_smoothing=0",
        ),
        (
            values["attack_loss"] == "kl" and loss != "trades",
            "attack_loss kl is TRADES' inner maximisation, which loss {loss} does not have: use "
            "attack_loss=ce, or a trades recipe",
        ),
        (
            values["loss_stop_gradient"] and loss not in PAIRED,
            "loss_stop_gradient true has no effect with loss {loss}: it belongs to a trades, alp or mart "
            "recipe",
        ),
        (
            (values["mart_bce_input"] is not None) != (loss == "mart"),
            "mart_bce_input {mart_bce_input} does not go with loss {loss}: only a mart recipe has it, and "
            "needs it; choose another name",
        ),
    ]


def _defence_rules(values: Mapping[str, Any]) -> list[Rule]:
    trh = "trh" in values["defences"]
    of_loss = [key for key in ("trh", "s2o") if key in values["defences"]]
    return [
        (
            bool(of_loss) and is_outside(values["loss"]),
            f"defences {', '.join(of_loss)} go with losses whose form they know (at, trades, alp, mart), not "
            "with loss {loss}: start from a name without them",
        ),
        *(
            (
                (values[key] is not None) != (defence in values["defences"]),
                f"{key} {{{key}}} does not go with defences {{defences}}: a recipe with {defence} needs "
                f"{', '.join(keys)}, and no other has them; choose another name",
            )
            for defence, keys in _OF_DEFENCE.items()
            for key in keys
        ),
        (
            values["trh_form"] != "linear" and not trh,
            "trh_form {trh_form} has no effect with defences {defences}: it belongs to a recipe with trh",
        ),
        (
            values["trh_form"] == "log" and not values["trh_gamma"],
            "trh_form log needs the prior that gamma stands for: set trh_gamma above 0",
        ),
        (
            values["swa_warmup"] and "swa" not in values["defences"],
            "swa_warmup true has no effect with defences {defences}: it belongs to a recipe with swa",
        ),
        (
            values["sam_rho"] is not None and "awp" in values["defences"],
            "sam_rho {sam_rho} does not go with awp, which moves the weights too: train with one of them",
        ),
        (
            values["sam_adaptive"] and values["sam_rho"] is None,
            "sam_adaptive true has no effect without a distance: set sam_rho too",
        ),
        (
            values["layer_decay"] is not None and is_outside(values["optimizer"]),
            "layer_decay {layer_decay} has no effect with optimizer {optimizer}, which groups the weights by "
            "itself: set layer_decay=none",
        ),
        (
            trh and values["l2_reg"] != 0,
            "l2_reg {l2_reg} does not go with trh, whose gamma replaces it: set "
            "trh_gamma, and leave l2_reg at 0",
        ),
        (
            not values["trh_stop_gradient"] and not (trh and values["loss"] in PAIRED),
            "trh_stop_gradient false has no effect here: it belongs to a trades, alp or mart recipe with trh",
        ),
    ]
