"""Claims: what a card says about robustness, as counts in the Hub's `model-index` metadata.

Each result carries its counts and everything needed to measure it again in the METRIC's `args`:
huggingface_hub merges the results of one dataset and keeps only the first one's dataset `args` and source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from robustzoo.cards.metadata import TASK, Card, CardError, bad_card
from robustzoo.cards.statistics import Accuracy
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.names import recipe_name
from robustzoo.registry.threat_model import ThreatModel

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from robustzoo.cards.evidence import Evidence

# `value` is written with this many decimals; the counts beside it are what is claimed.
_DECIMALS = 6
__all__ = ["TERMS", "CardError", "Claim", "default_tolerance", "eval_results", "model_index"]

# The fields that say what was measured. Claims that differ in one of them cannot be compared.
TERMS = (
    "threat_model",
    "dataset_id",
    "split",
    "subset",
    "dataset_digest",
    "protocol",
    "protocol_digest",
    "n",
)


def default_tolerance(n: int) -> int:
    """How many images a claim may be off and still hold: the larger of 1 % of n, rounded down, and 3."""
    return max(n // 100, 3)


@dataclass(frozen=True)
class Claim:
    """Clean and robust accuracy of one model under one threat model and protocol, as counts of `n` images.

    `tolerance` (images) is how far a count may be off. `seed` keyed the draws of the measurement; another
    seed is no contradiction.
    """

    model_name: str
    threat_model: ThreatModel
    dataset_id: str
    split: str
    subset: str
    dataset_digest: str
    protocol: str
    protocol_digest: str
    n: int
    clean_correct: int
    robust_correct: int
    seed: int
    tolerance: int

    def __post_init__(self) -> None:
        """Raises: CardError for counts or texts that no measurement gives."""
        for name in (
            "model_name",
            "dataset_id",
            "split",
            "subset",
            "dataset_digest",
            "protocol",
            "protocol_digest",
        ):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip() or not text.isprintable():
                raise bad_card(f"{name}: expected printable text, got {text!r}")
        for name in ("n", "clean_correct", "robust_correct", "seed", "tolerance"):
            if type(getattr(self, name)) is not int:
                raise bad_card(f"{name}: expected a whole number, got {getattr(self, name)!r}")
        if not 0 <= self.robust_correct <= self.clean_correct <= self.n or self.n < 1:
            raise bad_card(
                f"expected 0 <= robust <= clean <= n and n >= 1, got {self.robust_correct} robust and "
                f"{self.clean_correct} clean of n = {self.n}"
            )
        if self.tolerance < 0:
            raise bad_card(f"tolerance: expected 0 or more images, got {self.tolerance}")

    @property
    def clean_accuracy(self) -> Accuracy:
        return Accuracy.of(self.clean_correct, self.n)

    @property
    def robust_accuracy(self) -> Accuracy:
        return Accuracy.of(self.robust_correct, self.n)

    @classmethod
    def from_evidence(cls, evidence: Evidence) -> Claim:
        """The claim that an evaluation supports, with the default tolerance.

        Raises:
            EvidenceError: it is a shard, which supports none.
        """
        evidence.require_whole()
        doc = evidence.doc
        counts, dataset, protocol = doc["counts"], doc["dataset"], doc["protocol"]
        return cls(
            model_name=recipe_name(doc["model"]["name"], doc["model"]["sha256"]),
            threat_model=evidence.threat_model,
            dataset_id=dataset["id"],
            split=dataset["split"],
            subset=dataset["subset"],
            dataset_digest=dataset["digest"],
            protocol=protocol["name"],
            protocol_digest=protocol["digest"],
            n=counts["n"],
            clean_correct=counts["clean_correct"],
            robust_correct=counts["robust_correct"],
            seed=doc["seed"],
            tolerance=default_tolerance(counts["n"]),
        )

    @classmethod
    def from_card(cls, card: str | Card) -> list[Claim]:
        """The claims of a card, in its order: one per threat model, protocol and subset. At least one.

        Args:
            card: the whole README.md, or one that has been read.

        Raises:
            CardError: no metadata, no model-index, malformed YAML or results, impossible counts, a value that
                its counts do not give, a tolerance above the default, or two claims for the same thing.
        """
        card = Card.read(card) if isinstance(card, str) else card
        name, results = card.results()
        return claims_of(recipe_name(name, card.weights_sha256), results)

    def to_model_index(self) -> list[dict[str, Any]]:
        """The `model-index` metadata of this claim alone."""
        return model_index([self])

    def differences(self, other: Claim, names: Iterable[str] | None = None) -> dict[str, tuple[Any, Any]]:
        """Field -> (own, other's) where they differ; `names=TERMS` asks whether they are comparable."""
        names = [field.name for field in fields(self)] if names is None else names
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def eval_results(claims: Sequence[Claim]) -> list[EvalResult]:
    """Claims as the results of huggingface_hub: the clean accuracy once a subset, then the robust ones.

    Raises:
        CardError: claims that contradict or repeat each other, or one with more than the default tolerance.
    """
    _check_together(claims)
    results: list[EvalResult] = []
    clean: set[tuple[str, ...]] = set()
    for claim in claims:
        if _subset(claim) not in clean:
            clean.add(_subset(claim))
            results.append(_result(claim, "clean", "Clean accuracy", claim.clean_correct, {}))
        terms = {
            "norm": claim.threat_model.norm,
            "epsilon": claim.threat_model.epsilon_text,
            "protocol": claim.protocol,
            "protocol_digest": claim.protocol_digest,
            "seed": claim.seed,
            "tolerance": claim.tolerance,
        }
        title = f"Robust accuracy ({claim.threat_model}, {claim.protocol})"
        results.append(_result(claim, "robust", title, claim.robust_correct, terms))
    return results


def _subset(claim: Claim) -> tuple[str, ...]:
    return (claim.dataset_id, claim.split, claim.subset, claim.dataset_digest)


def _result(claim: Claim, quantity: str, title: str, correct: int, terms: dict[str, Any]) -> EvalResult:
    from huggingface_hub import EvalResult

    spec = DATASETS.get(claim.dataset_id)
    counts = {"quantity": quantity, "correct": correct, "n": claim.n}
    return EvalResult(
        task_type=TASK,
        task_name="Image classification",
        dataset_type=claim.dataset_id,
        dataset_name=spec.title if spec is not None else claim.dataset_id,
        dataset_config=claim.subset,
        dataset_split=claim.split,
        metric_type="accuracy",
        metric_name=title,
        metric_value=round(correct / claim.n, _DECIMALS),
        metric_args={**counts, **terms, "dataset_digest": claim.dataset_digest},
    )


def model_index(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The `model-index` metadata of a card. Raises: CardError as `eval_results`, or for no claims."""
    from huggingface_hub.repocard_data import eval_results_to_model_index

    if not claims:
        raise bad_card("a model-index needs at least one claim")
    return eval_results_to_model_index(claims[0].model_name, eval_results(claims))


def claims_of(model_name: str, results: Iterable[EvalResult]) -> list[Claim]:
    """The inverse of `eval_results`; results that are not ours (no `quantity` in args) are passed over.

    Raises:
        CardError: as `Claim.from_card`.
    """
    ours = [r for r in results if isinstance(r.metric_args, Mapping) and "quantity" in r.metric_args]
    clean: dict[tuple[Any, ...], int] = {}
    for result in ours:
        if result.metric_args is not None and result.metric_args["quantity"] == "clean":
            key = _place(result)
            if clean.setdefault(key, _correct(result)) != _correct(result):
                raise bad_card(f"two clean accuracies are claimed for {_where(result)}")
    claims = [_claim(model_name, r, clean) for r in ours if (r.metric_args or {})["quantity"] == "robust"]
    if not claims:
        raise bad_card("the card's model-index states no robust accuracy with counts")
    _check_together(claims)
    return claims


def _claim(model_name: str, result: EvalResult, clean: Mapping[tuple[Any, ...], int]) -> Claim:
    correct = _correct(result)
    if _place(result) not in clean:
        raise bad_card(
            f"{_where(result)}: no clean accuracy of the same images (n, dataset_digest) stands beside it"
        )
    epsilon, norm = _arg(result, "epsilon"), _arg(result, "norm")
    if not isinstance(epsilon, str):
        raise bad_card(f'{_where(result)}: epsilon must be quoted text such as "8/255", got {epsilon!r}')
    try:
        threat_model = ThreatModel.parse(f"{norm}:{epsilon}")
    except RobustzooError as error:
        raise bad_card(f"{_where(result)}: {error}") from error
    if (threat_model.norm, threat_model.epsilon_text) != (norm, epsilon):
        raise bad_card(f"{_where(result)}: {norm}:{epsilon} must be written {threat_model}")
    return Claim(
        model_name=model_name,
        threat_model=threat_model,
        dataset_id=result.dataset_type,
        split=result.dataset_split or "",
        subset=result.dataset_config or "",
        dataset_digest=_arg(result, "dataset_digest"),
        protocol=_arg(result, "protocol"),
        protocol_digest=_arg(result, "protocol_digest"),
        n=_arg(result, "n"),
        clean_correct=clean[_place(result)],
        robust_correct=correct,
        seed=_arg(result, "seed"),
        tolerance=_arg(result, "tolerance"),
    )


def _place(result: EvalResult) -> tuple[Any, ...]:
    """The images a result is about, as a hashable key."""
    parts = (result.dataset_type, result.dataset_split, result.dataset_config)
    return tuple(str(part) for part in (*parts, _arg(result, "dataset_digest"), _arg(result, "n")))


def _arg(result: EvalResult, name: str) -> Any:
    args = result.metric_args or {}
    if name not in args:
        raise bad_card(
            f"{_where(result)}: the metric's args lack {name!r}; they have {', '.join(map(str, args))}"
        )
    return args[name]


def _correct(result: EvalResult) -> int:
    """The count of a result, after it has been compared with the value beside it."""
    correct, n = _arg(result, "correct"), _arg(result, "n")
    if type(correct) is not int or type(n) is not int or not 0 <= correct <= n or n < 1:
        raise bad_card(
            f"{_where(result)}: expected whole numbers 0 <= correct <= n, got {correct!r} of {n!r}"
        )
    value = result.metric_value
    if type(value) not in (int, float) or not abs(value - correct / n) <= 10.0**-_DECIMALS:
        raise bad_card(
            f"{_where(result)}: value {value!r} does not match {correct} / {n} = {correct / n:.6f}"
        )
    return correct


def _where(result: EvalResult) -> str:
    return (
        f"model-index, {result.dataset_type} {result.dataset_split}, {result.metric_name or 'unnamed metric'}"
    )


def _check_together(claims: Sequence[Claim]) -> None:
    """Raise CardError where claims of one card repeat or contradict each other, or allow too much."""
    clean: dict[tuple[str, ...], tuple[int, int]] = {}
    seen: set[tuple[Any, ...]] = set()
    for claim in claims:
        if claim.model_name != claims[0].model_name:
            raise bad_card(f"one card is about one model, got {claims[0].model_name} and {claim.model_name}")
        if claim.tolerance > default_tolerance(claim.n):
            raise bad_card(
                f"tolerance: for n = {claim.n} a card may claim at most "
                f"{default_tolerance(claim.n)} images, got {claim.tolerance}"
            )
        terms = tuple(getattr(claim, name) for name in TERMS)
        if terms in seen:
            raise bad_card(f"{claim.threat_model}, {claim.protocol} on {claim.subset} is claimed twice")
        seen.add(terms)
        counts = (claim.clean_correct, claim.n)
        if clean.setdefault(_subset(claim), counts) != counts:
            raise bad_card(
                f"two clean accuracies are claimed for {claim.dataset_id} {claim.split} {claim.subset}: "
                f"{clean[_subset(claim)]} and {counts} (correct, n)"
            )
