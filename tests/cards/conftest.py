"""A small evaluation, made up but consistent, in the form in which the evaluator hands it over."""

from __future__ import annotations

import copy

import pytest

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import protocol_digest

SHA256 = "c" * 64


MEMBERS = [
    {"attack": "apgd-ce", "iterations": 100, "restarts": 1, "targets": 0},
    {"attack": "apgd-t", "iterations": 100, "restarts": 1, "targets": 9},
]


def _samples(n: int, num_classes: int) -> list[dict]:
    """Of every five images: one misclassified, one broken by apgd-ce, one by apgd-t, two robust."""
    samples = []
    for i in range(n):
        label = i % num_classes
        sample = {"id": 3 * i, "label": label, "predicted": label, "robust": i % 5 > 2, "broken_by": None}
        if i % 5 == 0:
            sample["predicted"] = (label + 1) % num_classes
        elif i % 5 == 1:
            sample["broken_by"] = {"attack": "apgd-ce", "target": None, "restart": 0, "iteration": 4}
        elif i % 5 == 2:
            target = (label + 1) % num_classes
            sample["broken_by"] = {"attack": "apgd-t", "target": target, "restart": 0, "iteration": 7}
        samples.append(sample)
    return samples


def _sections(n: int = 10, name: str = "vit_micro2.digits_linf.trades_trh", **changes) -> dict:
    sections = {
        "model": {"name": name, "sha256": SHA256},
        "threat_model": "linf:1/10",
        "protocol": {
            "name": "apgd-ce+t",
            "members": MEMBERS,
            "digest": protocol_digest("apgd-ce+t", MEMBERS),
        },
        "dataset": {
            "id": "digits",
            "split": "test",
            "subset": "all",
            "num_classes": 10,
            "image_shape": (1, 8, 8),
            "indices": [3 * i for i in range(n)],
            "digest": "b" * 64,
        },
        "seed": 0,
        "micro_batch_size": 64,
        "samples": _samples(n, 10),
        "passes": {"forward": 1234, "backward": 987},
        "witnesses": {"file": "apgd-ce+t.all.witness.safetensors", "sha256": "d" * 64, "count": 2 * n // 5},
        "run": {
            "started": "2026-01-01T00:00:00Z",
            "wall_seconds": 1.5,
            "device": "cpu",
            "threads": 1,
            "workers": 1,
            "fingerprint": {"instruction_set": "AVX2"},
            "versions": {"torch": "2.6.0"},
        },
    }
    return copy.deepcopy({**sections, **changes})


@pytest.fixture
def sections():
    """sections(n=10, **changes) -> keyword arguments of Evidence.build."""
    return _sections


@pytest.fixture
def evidence():
    """A valid Evidence of 10 images: 8 classified correctly, 4 of them robust."""
    return Evidence.build(**_sections())
