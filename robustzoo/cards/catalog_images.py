"""Whether Evidence with a catalog dataset's name can be about its images: their number, their digest."""

from __future__ import annotations

import re
from typing import Any

from robustzoo.registry.catalog import DATASETS

_COUNTED = re.compile(r"(?:n|chosen|part)(\d{1,12})(?:-seed.*)?", re.ASCII)


def images_problem(doc: dict[str, Any]) -> str | None:
    """What in an Evidence document contradicts the catalog's dataset of that name, in words; None for
    nothing, and for images that do not carry such a name.

    "all" are all images of the split "test", with the pixels that the catalog knows.
    """
    dataset = doc["dataset"]
    spec = DATASETS.get(dataset["id"])
    if spec is None:
        return None
    name, n = f"{dataset['id']} {dataset['split']}", len(dataset["indices"])
    test = dataset["split"] == "test"
    size = spec.test_size if test else spec.train_size
    if dataset["num_classes"] != spec.num_classes:
        return f"it has {dataset['num_classes']} classes, {name} has {spec.num_classes}"
    if dataset["image_shape"][0] != spec.channels:
        return f"its images have {dataset['image_shape'][0]} channels, those of {name} {spec.channels}"
    if max(dataset["indices"]) >= size:
        return f"it has an image {max(dataset['indices'])}, and {name} has {size:,} images"
    if test and dataset["subset"] == "all" and n != size:
        return f"its {n:,} images are called all of {name}, which has {size:,}"
    if test and n == size and spec.test_digest not in (None, dataset["digest"]):
        return f"its digest {dataset['digest']} is not that of {name}, {spec.test_digest}: other images"
    counted = _COUNTED.fullmatch(dataset["subset"])
    if counted is not None and int(counted[1]) != n:
        return f"its {n:,} images are called {dataset['subset']}"
    return None
