"""The figure of a report: accuracy from attack to attack, iterations to break, classes, perturbations."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset
from robustzoo.evaluation.witnessing import inside
from robustzoo.reports.text import per_class, stages
from robustzoo.streams import one_line

# Classes beyond which bars become too thin to label.
_BARS = 20
_DPI = 130


def png(evidence: Evidence, pictures: Sequence[Picture]) -> bytes:
    """The figure as PNG: the same Evidence and pictures give the same bytes."""
    rows = 3 if any(p.clean is not None for p in pictures) else 1
    heights = [6.4] + ([1.5 * rows + 0.5] if pictures else [])
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    parts = np.atleast_1d(figure.subfigures(len(heights), 1, height_ratios=heights))
    doc = evidence.doc
    title = (
        f"{doc['model']['name']}, {evidence.threat_model}, {doc['protocol']['name']}: {doc['counts']['n']} "
        f"images of {doc['dataset']['id']} {doc['dataset']['split']}"
    )
    # A folder's name may hold $, which is no formula.
    parts[0].suptitle(one_line(title), fontsize=11, parse_math=False)
    grid = parts[0].subplots(2, 2)
    _stages(grid[0, 0], evidence)
    _iterations(grid[0, 1], evidence)
    _classes(grid[1, 0], evidence)
    _targets(grid[1, 1], evidence)
    if pictures:
        parts[1].suptitle("Perturbations of broken images", fontsize=11)
        _perturbations(np.atleast_2d(parts[1].subplots(rows, len(pictures), squeeze=False)), pictures)
    return _bytes_of(figure)


def curve_png(points: Sequence[Evidence]) -> bytes:
    """Robust accuracy over epsilon with exact 95 % intervals, epsilon 0 being the clean accuracy.

    points: by ascending epsilon, of one model, norm and protocol. The same give the same bytes.
    """
    first = points[0]
    shown = [
        (0.0, first.clean_accuracy),
        *((float(p.threat_model.epsilon), p.robust_accuracy) for p in points),
    ]
    at, values = [x for x, _ in shown], [100 * a.value for _, a in shown]
    reach = [[100 * (a.value - a.low) for _, a in shown], [100 * (a.high - a.value) for _, a in shown]]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(at, values, yerr=reach, marker="o", capsize=4)
    axes.set_xticks(at, ["0", *(p.threat_model.epsilon_text for p in points)])
    axes.set_ylim(0, 105)
    axes.set_xlabel(f"epsilon ({first.threat_model.norm}, pixels in [0, 1])")
    axes.set_ylabel("correct (%)")
    axes.grid(alpha=0.3)
    doc = first.doc
    title = f"{doc['model']['name']}, {doc['protocol']['name']}: {doc['counts']['n']} images"
    axes.set_title(one_line(title), fontsize=10, parse_math=False)
    return _bytes_of(figure)


def _bytes_of(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    return stream.getvalue()


def _stages(axes: Axes, evidence: Evidence) -> None:
    found = stages(evidence)
    values = [100 * accuracy.value for _, accuracy in found]
    reach = [[100 * (a.value - a.low) for _, a in found], [100 * (a.high - a.value) for _, a in found]]
    axes.errorbar(range(len(found)), values, yerr=reach, marker="o", capsize=4)
    for at, value in enumerate(values):
        below = value > 92  # where a number above would leave the axes
        place = (8, -12) if below else (8, 6)
        axes.annotate(f"{value:.1f}", (at, value), textcoords="offset points", xytext=place, fontsize=8)
    axes.set_xticks(range(len(found)), [name for name, _ in found])
    axes.set_xlim(-0.4, len(found) - 0.4)
    axes.set_ylim(0, 105)
    axes.set_ylabel("correct (%)")
    axes.set_title("Accuracy after each attack (95 % intervals)", fontsize=10)
    axes.grid(alpha=0.3)


def _iterations(axes: Axes, evidence: Evidence) -> None:
    axes.set_title("Iteration of the attempt that broke the image", fontsize=10)
    by_attack: dict[str, list[int]] = {m["attack"]: [] for m in evidence.doc["protocol"]["members"]}
    for verdict in evidence.verdicts:
        if verdict.broken_by is not None:
            by_attack[verdict.broken_by.attack].append(verdict.broken_by.iteration)
    by_attack = {attack: found for attack, found in by_attack.items() if found}
    if not by_attack:
        _nothing(axes)
        return
    last = max(max(found) for found in by_attack.values())
    # 0, then intervals that double: an APGD breaks within tens of steps, Square within thousands of queries.
    edges = np.concatenate([[-0.5], 2.0 ** np.arange(np.ceil(np.log2(last + 1)) + 1) - 0.5])
    counted = [np.histogram(found, edges)[0] for found in by_attack.values()]
    bottom = np.zeros(len(edges) - 1, int)
    for attack, heights in zip(by_attack, counted, strict=True):
        axes.bar(range(len(heights)), heights, bottom=bottom, label=attack, width=0.85)
        bottom += heights
    firsts, lasts = (edges[:-1] + 0.5).astype(int), (edges[1:] - 0.5).astype(int)
    labels = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True)]
    axes.set_xticks(range(len(labels)), labels, rotation=45, fontsize=7, ha="right")
    axes.set_ylabel("images")
    axes.legend(fontsize=8)


def _classes(axes: Axes, evidence: Evidence) -> None:
    rows = per_class(evidence)
    axes.set_ylabel("correct (%)")
    axes.set_ylim(0, 105)
    robust = [100 * row.robust.value for row in rows]
    clean = [100 * row.clean.value for row in rows]
    axes.grid(axis="y", alpha=0.3)
    if len(rows) > _BARS:
        order = np.argsort(robust, kind="stable")
        axes.plot(np.asarray(clean)[order], ".", ms=3, alpha=0.5, label="clean")
        axes.plot(np.asarray(robust)[order], label="robust")
        axes.set_xlabel("class, by robust accuracy")
    else:
        at = np.arange(len(rows))
        axes.bar(at - 0.2, clean, 0.4, label="clean", color="tab:gray", alpha=0.6)
        reach = [
            [100 * (row.robust.value - row.robust.low) for row in rows],
            [100 * (row.robust.high - row.robust.value) for row in rows],
        ]
        axes.bar(at + 0.2, robust, 0.4, yerr=reach, capsize=2, label="robust", color="tab:blue")
        axes.set_xticks(at, [one_line(row.name) for row in rows])
        axes.set_xlabel("class")
    axes.set_title("Accuracy per class", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")


def _targets(axes: Axes, evidence: Evidence) -> None:
    """Of how many images each attack broke which share, by class."""
    axes.set_title("Images broken, by attack and class", fontsize=10)
    attacks = [member["attack"] for member in evidence.doc["protocol"]["members"]]
    labels = [row.label for row in per_class(evidence)]
    table = np.zeros((len(attacks), len(labels)), int)
    for verdict in evidence.verdicts:
        if verdict.broken_by is not None:
            table[attacks.index(verdict.broken_by.attack), labels.index(verdict.label)] += 1
    if not table.any():
        _nothing(axes)
        return
    axes.imshow(table, aspect="auto", cmap="Oranges", vmin=0)
    axes.set_yticks(range(len(attacks)), attacks)
    axes.set_xlabel("class")
    if len(labels) <= _BARS:
        axes.set_xticks(range(len(labels)), labels)
        for (row, column), count in np.ndenumerate(table):
            if count:
                axes.text(column, row, str(count), ha="center", va="center", fontsize=8)


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no image was broken", ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _perturbations(grid: np.ndarray, pictures: Sequence[Picture]) -> None:
    largest = max((p.distance["linf"] for p in pictures if p.distance is not None), default=0.0)
    for column, picture in enumerate(pictures):
        shown = [(picture.witness, "fooling point")]
        if len(grid) == 3:
            clean = picture.clean
            difference = None
            if clean is not None and largest > 0:
                difference = 0.5 + (picture.witness - clean) / (2 * largest)
            shown = [(clean, "clean"), *shown, (difference, f"difference, ±{largest:.3g}")]
        for row, (image, name) in enumerate(shown):
            axes = grid[row, column]
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name, fontsize=8)
            if image is not None:
                axes.imshow(*_drawable(image), vmin=0, vmax=1, interpolation="nearest")
        grid[0, column].set_title(f"{picture.id}, class {picture.label}\n{picture.attack}", fontsize=8)


def _drawable(image: np.ndarray) -> tuple[np.ndarray, str]:
    """(H, W, 3), or (H, W) for anything but three channels: then the mean of them."""
    pixels = np.clip(image.transpose(1, 2, 0), 0, 1)
    return (pixels if pixels.shape[2] == 3 else pixels.mean(2)), "gray"


@dataclass(frozen=True, eq=False)
class Picture:
    """One broken image. witness, clean: float32 (C, H, W) in [0, 1]; clean is None where it cannot be had."""

    id: int
    label: int
    attack: str
    witness: np.ndarray
    clean: np.ndarray | None

    @property
    def distance(self) -> dict[str, float] | None:
        """Linf and L2 norm of the perturbation in pixel units; None without the clean image."""
        if self.clean is None:
            return None
        delta = (self.witness - self.clean).astype(np.float64)
        return {"linf": float(np.abs(delta).max()), "l2": float(np.sqrt((delta**2).sum()))}


def choose_pictures(
    evidence: Evidence, path: Path, dataset: ImageDataset | None, count: int
) -> tuple[list[Picture], str | None]:
    """Up to `count` broken images, spread over those that have a witness, and what a reader must know.

    Args:
        path: the Evidence's file; its witnesses lie beside it.
        dataset: where the clean images are; None shows the witnesses alone.

    Returns:
        the pictures, and a note where something is missing (None otherwise).

    Raises:
        WitnessError: the witness file is not the Evidence's.
    """
    stated = evidence.doc["witnesses"]
    if stated is None or not path.with_name(stated["file"]).is_file():
        missing = "no witnesses are stored" if stated is None else f"{stated['file']} is missing"
        return [], f"{missing}, so there are no pictures of perturbations"
    shape = evidence.doc["dataset"]["image_shape"]
    witnesses = Witnesses.load(path.with_name(stated["file"]), stated["sha256"], stated["count"], shape)
    broken = {v.id: v for v in evidence.verdicts if v.broken_by is not None}
    rows = [row for row, i in enumerate(witnesses.ids) if int(i) in broken]
    picked = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))]
    pictures, strange = [], 0
    for row in picked:
        verdict = broken[int(witnesses.ids[row])]
        witness = witnesses.points([row])[0]
        clean = None if dataset is None else _clean(dataset, verdict.id, verdict.label)
        if clean is not None and not _near(witness, clean, evidence):
            clean, strange = None, strange + 1
        pictures.append(Picture(verdict.id, verdict.label, verdict.broken_by.attack, witness, clean))
    note = None
    if strange:
        note = f"{strange} witnesses are not within {evidence.threat_model} of the images given: other data?"
    elif dataset is None and pictures:
        note = (
            f"the clean images, {evidence.doc['dataset']['id']} {evidence.doc['dataset']['split']}, cannot "
            "be read here, so the fooling points are shown alone: name their folder with --data DIR (a "
            "dataset of the catalog: --data-root DIR)"
        )
    return pictures, note


def _clean(dataset: ImageDataset, position: int, label: int) -> np.ndarray | None:
    """The image at a position, where there is one with this label."""
    if position >= len(dataset):
        return None
    x, found = dataset[position]
    return x.numpy() if int(found) == label else None


def _near(witness: np.ndarray, clean: np.ndarray, evidence: Evidence) -> bool:
    if witness.shape != clean.shape:
        return False
    pair = (torch.from_numpy(part.copy())[None] for part in (witness, clean))
    return bool(inside(*pair, evidence.threat_model)[0])
