"""verify(): is what a model's card claims true of these weights, and how much of it was tested."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from robustzoo.cards.check import as_in_its_folder, picture_problem, require_rendered, require_same
from robustzoo.cards.claims import Claim, default_tolerance
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.metadata import LAYOUT, Card
from robustzoo.cards.notes import split_notes
from robustzoo.cards.signs import masking_signs
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset, Subset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import check_arguments
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.micro_batch import bounded_micro_batch
from robustzoo.evaluation.prepare import Prepared, ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.terms import evidence_of, terms_of
from robustzoo.evaluation.workers import attack_all
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
    text = comparable.card_text(folder, card)
    read = Card.read(text if card is None else as_in_its_folder(text))
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
            witnesses = comparable.load_witnesses(one, report.notes)
            case = _Case(report, one.evidence, model, found, dataset, witnesses)
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
    picture = picture_problem(folder, [one.evidence for one in stated], read.layout)
    if picture is not None:
        notes.append(picture)
    if read.layout < LAYOUT:
        notes.append(f"the card has an earlier layout, and stands: `robustzoo card {folder}` renews it")
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
    """A claim that can be compared (in its report), with all that it is checked against; sha256: of the
    weights, as they were hashed."""

    report: ClaimReport
    evidence: Evidence
    model: PixelModel
    sha256: str
    dataset: ImageDataset
    witnesses: Witnesses | None

    @property
    def subset(self) -> Subset:
        stated = self.evidence.doc["dataset"]
        return Subset(stated["subset"], stated["indices"], stated["digest"], self.dataset)


def _check(case: _Case, run: _Run) -> None:
    """Replay, then attack again as `run` says; fills in the report."""
    report, claim = case.report, case.report.claim
    asked = ask(
        case.model,
        claim.threat_model,
        claim.protocol,
        device=run.device or "cpu",
        indices=case.subset,
        seed=run.seed,
        workers=run.workers,
        answers_only=run.mode == "replay",
    )
    with (
        Reporter(run.progress) as reporter,
        prepare(case.model, case.dataset, asked, _told(run, reporter), case.sha256) as ready,
    ):
        # ---- as the Evidence has it, where that is possible here ------------------------------------------
        ready = _sized(ready, case, run, reporter)
        there, here = case.evidence.doc["run"]["fingerprint"], ready.fingerprint
        report.fingerprint = {
            key: (there.get(key), here.get(key))
            for key in sorted({*there, *here})
            if there.get(key) != here.get(key)
        }

        # ---- what is stored: clean images and witnesses ---------------------------------------------------
        reporter.say(replay_cost(ready, case.witnesses), "cost")
        found = replay(ready, case.witnesses)
        judging.count(report, case.evidence, found)
        judging.note_witnesses(report, found)
        judging.judge_clean(report)
        judging.note_evidence(report)

        # ---- what attacks find ----------------------------------------------------------------------------
        if run.mode == "replay":
            report.masking = masking_signs(case.evidence)
            judging.judge_replay(report)
        elif run.mode == "spot":
            report.seed = run.seed
            _spot_check(report, ready, run.workers, reporter)
        else:
            report.seed = run.seed
            fresh = _attacked_in_full(case, ready, run.workers, reporter)
            report.masking = masking_signs(fresh)
            judging.note_verdicts(report, case.evidence, fresh, found)
            judging.judge_full(report)


def _told(run: _Run, reporter: Reporter) -> Reporter | None:
    """Who is told how images are read and batches filled: a full run, as an evaluation is."""
    return reporter if run.mode == "full" else None


def _sized(ready: Prepared, case: _Case, run: _Run, reporter: Reporter) -> Prepared:
    """At the Evidence's micro-batch, so that equal runs give equal bits, as far as it is no more than padding
    and fits into memory; a smaller one is noted."""
    stated, n = case.evidence.doc["micro_batch_size"], case.report.claim.n
    size = bounded_micro_batch(stated, n)
    ready = ready.sized(size, workers=run.workers, reporter=_told(run, reporter))
    if (size := ready.work.micro_batch_size) < stated:
        case.report.notes.append(
            f"the Evidence states a micro-batch of {stated}; {size} is used here, as much as {n} "
            f"images fill and the memory of {ready.asked.device} holds"
        )
    return ready


def _spot_check(report: ClaimReport, ready: Prepared, workers: int, reporter: Reporter) -> None:
    """Attack what a spot check attacks, unless the replay has refuted the claim already, and judge."""
    bounds = judging.spot_bounds(report)
    found = None if bounds is None else spot(ready, bounds, workers, reporter)
    if found is not None:
        report.entropy = found.entropy
        report.masking = [] if found.masking is None else [found.masking]
    judging.judge_spot(report, found)


def _attacked_in_full(case: _Case, ready: Prepared, workers: int, reporter: Reporter) -> Evidence:
    """The Evidence of the whole protocol, run again."""
    ledger = Ledger(ready.subset.indices, ready.work.attacks, ready.work.micro_batch_size)
    workers = min(workers, len(ledger.ids))
    attack_all(ready, ledger, workers, reporter)
    model = {"name": case.report.claim.model_name, "sha256": case.sha256}
    return evidence_of(terms_of(model, ready), ledger, ready, workers)
