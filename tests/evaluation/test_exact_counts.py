"""Odd shapes and ends of the range give the right number: few classes, H != W, one image, nothing to attack.

On a linear network the distance to the decision boundary is known: (z_y - z_j) / |w_y - w_j|_dual, the least
over j, as long as the box [0, 1] is out of reach.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustzoo.evaluation.evaluate import evaluate

SHAPE = (3, 4, 7)
DUAL = {"linf": 1.0, "l2": 2.0}
EPS = {"linf": "1/20", "l2": "2/5"}


def linear_case(classes: int, n: int = 7, seed: int = 0):
    """A network, images in [0.4, 0.6], their predicted labels, and a function of the norm: distances (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.4 + 0.2 * torch.rand(n, *SHAPE, generator=generator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), classes)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(classes, x[0].numel(), generator=generator))
        # Every class wins somewhere: take the mean answer away.
        model[1].bias.copy_(-(x.flatten(1) @ model[1].weight.T).mean(0))
        y = model(x).argmax(1)

    def distances(norm: str):
        weight, logits = model[1].weight.detach().double(), model(x).detach().double()
        found = []
        for z, label in zip(logits, y, strict=True):
            others = [j for j in range(classes) if j != label]
            lengths = [torch.linalg.vector_norm(weight[label] - weight[j], DUAL[norm]) for j in others]
            found.append(min(float((z[label] - z[j]) / w) for j, w in zip(others, lengths, strict=True)))
        return found

    return model, x, y, distances


def run(model, x, y, threat_model, protocol="apgd-ce+t", **options):
    options = {"micro_batch_size": 4, "progress": False, **options}
    return evaluate(model, (x, y), threat_model, protocol, **options)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("classes", [2, 3, 4, 8])
def test_few_classes_and_oblong_images_give_the_known_verdicts(classes, norm):
    model, x, y, distances = linear_case(classes)
    known = sorted(distances(norm))
    eps = (known[3] + known[4]) / 2  # between two images: four of seven are within reach
    found = run(model, x, y, f"{norm}:{eps:.6f}")
    assert [v.robust for v in found.verdicts] == [d > eps for d in distances(norm)]
    assert found.robust_accuracy.correct == 3 and found.clean_accuracy.correct == 7


def test_the_whole_protocol_on_three_classes():
    model, x, y, distances = linear_case(3, n=3)
    known = sorted(distances("linf"))
    eps = (known[1] + known[2]) / 2
    found = run(model, x, y, f"linf:{eps:.6f}", "aa-standard")
    assert [v.robust for v in found.verdicts] == [d > eps for d in distances("linf")]
    attacks = [member["attack"] for member in found.doc["protocol"]["members"]]
    assert attacks == ["apgd-ce", "apgd-t", "fab-t", "square"]


@pytest.mark.parametrize("size", [1, 4])
def test_one_image_alone(size):
    model, x, y, distances = linear_case(4)
    far = distances("linf")[2]
    for factor, robust in ((0.9, True), (1.1, False)):
        found = run(model, x[2:3], y[2:3], f"linf:{far * factor:.6f}", micro_batch_size=size)
        assert [v.robust for v in found.verdicts] == [robust]


def test_all_broken_at_the_first_points_leave_the_later_members_nothing():
    model, x, y, _ = linear_case(8)
    found = run(model, x, y, "linf:1", "aa-standard")
    assert found.robust_accuracy.correct == 0 and found.clean_accuracy.correct == 7
    assert found.doc["counts"]["broken_by"] == {"apgd-ce": 7}
    assert len(found.witness_set) == 7


def test_none_correct_is_no_attack_at_all():
    model, x, y, _ = linear_case(4)
    found = run(model, x, (y + 1) % 4, "linf:1/20", "aa-standard")
    assert found.doc["counts"] == {"n": 7, "clean_correct": 0, "robust_correct": 0, "broken_by": {}}
    assert found.doc["passes"] == {"forward": 7, "backward": 0} and len(found.witness_set) == 0
