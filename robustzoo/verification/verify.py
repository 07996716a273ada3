"""verify(): is what a model's card claims true of these weights, and how much of it was tested."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from robustzoo.cards.check import require_rendered, require_same
from robustzoo.cards.claims import Claim, default_tolerance
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.metadata import Card
from robustzoo.cards.notes import split_notes
from robustzoo.cards.signs import masking_signs
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset, Subset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation import machine
from robustzoo.evaluation.checks import check_arguments, probe_images, read_probe
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.prepare import Asked, Prepared, ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.models.folder import ModelFolder, read_folder
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry.entries import public_name
from robustzoo.registry.threat_model import CORRUPTIONS
from robustzoo.verification import comparable, judging
from robustzoo.verification.replay import replay, replay_cost
from robustzoo.verification.report import ClaimReport, VerificationReport, append_to, check_log
from robustzoo.verification.spot import spot

MODES = ("replay", "spot", "full")
# Fresh seeds are below this: whole numbers in any JSON reader, and too many for an author to try them all.
_SEEDS = 2**53


def verify(
    folder: str | PathLike[str],
    *,
    card: str | Path | None = None,
    mode: str = "replay",
    sha256: str | None = None,
    data: Any = None,
    data_root: str | Path | None = None,
    classes: str | Path | None = None,
    tolerance: int | None = None,
    seed: int | None = None,
    same_seed: bool = False,
    workers: int = 1,
    device: str | torch.device | None = None,
    require: str | None = None,
    log: str | Path | None = None,
    progress: bool | Callable[[dict], None] = True,
) -> VerificationReport:
    """Check every claim of a model's card against its weights, its Evidence and the data.

    `replay` classifies the clean images and every witness: one forward each. It can show that the model is at
    most as robust as claimed ("consistent"), never that it is at least so. `spot` attacks all images with the
    cheap part of the protocol and then randomly drawn survivors with all of it, until the claim is decided
    with an error of at most 5 %. `full` runs the whole protocol again on all images. Both use fresh
    randomness and say "confirmed" or "refuted". What it will cost here is said first.

    Args:
        folder: a model folder: weights, card (README.md), evidence/*.json and witnesses.
        card: another card than the folder's own.
        sha256: what the weights must hash to, beside what the Evidence says (for example the lock file's).
        data: the images, as `evaluate` takes them, where the Evidence is not about a dataset of the catalog.
        data_root: folder of a named dataset's files.
        classes: a file of class names in order, for a folder with one folder per class.
        tolerance: images that a count may be off, at most the larger of 1 % and 3; default: the card's own.
        seed: of the attacks; default: drawn from system entropy, since a draw that the author can predict
            proves nothing. Recorded in the report. (Which survivors a spot check draws is always the
            system's choice.)
        same_seed: use the Evidence's seed for the attacks: in a full run equal counts on an equal machine.
        workers, device, progress: as in `evaluate`, for attacks.
        require: "confirmed" makes "consistent" exit with 3.
        log: append one JSON line to this file, in a folder that exists.

    Raises:
        RobustzooError: the weights are not those that `sha256`, the card or the Evidence names, or the
            witness file is not the one that the Evidence names. (A missing witness file is noted: replay then
            cannot test that the model is at most as robust as claimed.)
        CardError: no card, one without claims, one whose text states other numbers than its metadata, or one
            that says anything else than the folder's recipe and evidence give (the author's notes excepted).
        RobustzooError, EvidenceError: a file of the folder is missing, damaged or contradicts
            itself.
        DataError, MissingData: the images cannot be had.
        RobustzooError: the base of all of these, itself for a wrong argument or a folder without Evidence.
        LogNotWritten: the log fails at the end; the error's `report` is what would have been returned.
    """
    # ---- what was asked -----------------------------------------------------------------------------------
    opened = ModelFolder.of(folder)
    folder = opened.path
    _check_arguments(mode, require, seed, same_seed, log)
    check_arguments(tolerance=tolerance, workers=workers)

    # ---- what the folder states, and that it is whole -----------------------------------------------------
    read = Card.read(comparable.card_text(folder, card))
    claims = Claim.from_card(read)
    _check_tolerance(tolerance, claims)
    require_same(read, claims)
    stated, unstated = comparable.read_statements(folder, claims)
    comparable.refuse_unread(data, (one.evidence for one in stated))
    in_evidence = (one.evidence.doc["model"]["sha256"] for one in stated)
    found = comparable.check_weights(opened, (sha256, read.weights_sha256, *in_evidence))
    for one in stated:
        comparable.check_witness_file(one)
    model = read_folder(opened)
    differences = [comparable.card_differences(one, model) for one in stated]
    if not any(differences):
        pairs = [(one.claim, one.evidence) for one in stated]
        require_rendered(read, opened.config.recipe, pairs, model.license)

    # ---- each claim: comparable, then replayed, then attacked ---------------------------------------------
    reports = []
    of_corruptions = [one.claim.threat_model.norm == CORRUPTIONS for one in stated]
    for one, differing, corrupted in zip(stated, differences, of_corruptions, strict=True):
        if corrupted and not differing and not all(of_corruptions):
            continue  # no attack: said below
        allowed = one.claim.tolerance if tolerance is None else tolerance
        report = ClaimReport.untested(one.claim, allowed)
        reports.append(report)
        report.differences = differing
        if not differing:
            dataset = comparable.open_stated(one.evidence, data, data_root, classes)
            report.differences = comparable.data_differences(one.evidence, dataset, report.notes)
            if report.differences:
                report.notes += dataset.notes
        if not report.differences:
            drawn = one.evidence.seed if same_seed else secrets.randbelow(_SEEDS) if seed is None else seed
            case = _Case(report, one.evidence, model, dataset, comparable.load_witnesses(one, report.notes))
            _check(case, _Run(mode, drawn, workers, device, progress))

    # ---- what else a reader should know, and the log ------------------------------------------------------
    notes = []
    name = public_name(model.name, found)
    if name != model.name:
        notes.append(
            f"{model.name} is a published model, and these are other weights than its own: robustzoo.load("
            f"{model.name!r}) has those"
        )
    if any(of_corruptions):
        notes.append(
            "the numbers under common corruptions are not checked here: `robustzoo evaluate MODEL "
            "--threat-model corruptions --out FOLDER` counts them anew"
        )
    if unstated:
        notes.append(f"{unstated} more of the folder's Evidence is not stated by the card, and not checked")
    if split_notes(read.text)[1]:
        notes.append("the author's notes, at the end of the card, are not checked")
    result = VerificationReport(name, str(folder), found, mode, reports, require, notes)
    if log is not None:
        append_to(Path(log), result)
    return result


def _check_arguments(
    mode: str, require: str | None, seed: int | None, same_seed: bool, log: str | Path | None
) -> None:
    """Raise RobustzooError for values that mean nothing, or not together."""
    if mode not in MODES:
        raise RobustzooError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    if require not in (None, "confirmed"):
        raise RobustzooError(f'require is {require!r}; expected "confirmed" or None')
    if seed is not None:
        check_arguments(seed=seed)
        if same_seed:
            raise RobustzooError(f"seed {seed} and same_seed were both given; expected one of them")
    if mode == "replay" and (seed is not None or same_seed):
        raise RobustzooError(
            'seed and same_seed are about attacks, a replay draws nothing: use mode "spot" or "full" (--mode '
            "full) or leave them out"
        )
    if log is not None:
        check_log(Path(log))


def _check_tolerance(tolerance: int | None, claims: list[Claim]) -> None:
    """Refuse more than the default: with enough tolerance, any claim holds."""
    least = min(claim.n for claim in claims)
    most = default_tolerance(least)
    if tolerance is not None and tolerance > most:
        raise RobustzooError(
            f"tolerance is {tolerance}; expected at most {most} images for a claim about {least} (the larger "
            "of 1 % and 3): with more, it would prove nothing"
        )


@dataclass(frozen=True)
class _Run:
    """How the claims are checked; `seed` is that of the attacks, the others are as of verify()."""

    mode: str
    seed: int
    workers: int
    device: str | torch.device | None
    progress: bool | Callable[[dict], None]


@dataclass(frozen=True)
class _Case:
    """A claim that can be compared (in its report), with all that it is checked against."""

    report: ClaimReport
    evidence: Evidence
    model: PixelModel
    dataset: ImageDataset
    witnesses: Witnesses | None

    @property
    def subset(self) -> Subset:
        stated = self.evidence.doc["dataset"]
        return Subset(stated["subset"], stated["indices"], stated["digest"], self.dataset)


def _check(case: _Case, run: _Run) -> None:
    """Replay, then attack again as `run` says; fills in the report."""
    report, evidence, model, dataset = case.report, case.evidence, case.model, case.dataset
    claim, counts = report.claim, evidence.doc["counts"]
    asked = ask(
        model,
        claim.threat_model,
        claim.protocol,
        device=run.device or "cpu",
        indices=case.subset,
        seed=run.seed,
        workers=run.workers,
    )
    with Reporter(run.progress) as reporter, prepare(model, dataset, asked, guard=False) as ready:
        size = _micro_batch(case, run, ready)
        cost = replay_cost(model, dataset, claim.n, case.witnesses, size, asked.device)
        reporter.say(cost, "cost")
        if run.mode == "replay":  # the others are guarded where they attack, with gradients
            _guard_answers(ready, size)
        found = replay(model, dataset, evidence, case.witnesses, size, asked.device)
        here = machine.fingerprint(asked.device, size)
    there = evidence.doc["run"]["fingerprint"]
    report.fingerprint = {
        key: (there.get(key), here.get(key))
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    }
    report.numbers = {
        "n": claim.n,
        "tolerance": report.tolerance,
        "clean_claimed": claim.clean_correct,
        "clean_found": len(found.clean_correct),
        "clean_difference": len(found.clean_correct) - claim.clean_correct,
        "clean_in_evidence": counts["clean_correct"],
        "robust_claimed": claim.robust_correct,
        "robust_in_evidence": counts["robust_correct"],
        "robust_at_most": found.robust_at_most,
        "witnesses_valid": len(found.valid),
        "witnesses_needed": max(len(found.clean_correct) - claim.robust_correct - report.tolerance, 0),
    }
    judging.note_witnesses(report, found)
    judging.judge_clean(report)
    judging.note_evidence(report)
    if run.mode == "replay":
        report.masking = masking_signs(evidence)
        judging.judge_replay(report)
        return
    report.seed = run.seed
    if run.mode == "spot":
        _spot_check(case, run, asked, size)
        return
    fresh = evaluate(
        model,
        dataset,
        claim.threat_model,
        claim.protocol,
        indices=case.subset.indices,
        micro_batch_size=size,
        name=claim.model_name,
        seed=run.seed,
        workers=run.workers,
        device=run.device,
        progress=run.progress,
    )
    report.masking = masking_signs(fresh)
    report.numbers["robust_found"] = fresh.robust_accuracy.correct
    judging.note_verdicts(report, evidence, fresh, found)
    judging.judge_full(report)


def _spot_check(case: _Case, run: _Run, asked: Asked, size: int) -> None:
    """Attack what a spot check attacks, unless the replay has refuted the claim already, and judge."""
    report = case.report
    bounds = judging.spot_bounds(report)
    found = None
    if bounds is not None:
        with Reporter(run.progress) as reporter, prepare(case.model, case.dataset, asked) as ready:
            found = spot(ready.sized(size, workers=run.workers), bounds, run.workers, reporter)
        report.entropy = found.entropy
        report.masking = [] if found.masking is None else [found.masking]
    judging.judge_spot(report, found)


def _guard_answers(ready: Prepared, size: int) -> None:
    """Refuse a model that does not answer each image alone, also at the shape that is used here.

    Raises: RobustzooError as `check_forward` and `check_micro_batch`.
    """
    asks = {**ready.asked.protocol.asks, "gradients": False}
    check_forward(ready.model, probe_images(read_probe(ready.dataset)).to(ready.asked.device), **asks)
    first = [ready.dataset[i][0] for i in ready.subset.indices[:size]]
    check_micro_batch(ready.model, first, size, ready.asked.device, **asks)


def _micro_batch(case: _Case, run: _Run, ready: Prepared) -> int:
    """The Evidence's micro-batch, so that equal runs give equal bits, as far as it is no more than padding
    and fits into memory; a smaller one is noted."""
    stated, n, asked = case.evidence.doc["micro_batch_size"], case.report.claim.n, ready.asked
    gradients = run.mode != "replay" and asked.gradients
    size = machine.bounded_micro_batch(stated, n)
    size = ready.sized(size, workers=run.workers, gradients=gradients).work.micro_batch_size
    if size < stated:
        case.report.notes.append(
            f"the Evidence states a micro-batch of {stated}; {size} is used here, as much as {n} "
            f"images fill and the memory of {asked.device} holds"
        )
    return size
