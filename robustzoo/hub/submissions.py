"""What other leaderboards ask for, made of a model folder's Evidence: the Hub, RobustBench, Every Eval Ever.

The formats are theirs, as of the versions that docs/publishing.md names.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustzoo.cards import corruption_tables
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import HUB_DATASETS, CardError
from robustzoo.cards.passages import threat
from robustzoo.cards.statistics import Accuracy
from robustzoo.models.folder import ModelFolder
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.describe import network_title
from robustzoo.registry.entries import public_name

TARGETS = ("eval-results", "robustbench", "every-eval-ever")
EVAL_RESULTS = ".eval_results/robustzoo.yaml"
EVERY_EVAL_EVER = "0.3.0"  # of its schema
_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
_CONFIGS = {"cifar10": "plain_text", "cifar100": "cifar100"}  # of these datasets on the Hub; else default
_PROJECT = "robustzoo"
_URL = "https://huggingface.co/{}"


def submission(folder: str | Path, target: str, repo: str | None = None) -> dict[str, str]:
    """File name -> text, for whoever submits there.

    Args:
        target: one of TARGETS.
        repo: "OWNER/NAME" of the model on the Hub, which results link to; None leaves the link away.

    Raises:
        CardError: no Evidence that the target takes, and why.
    """
    opened = ModelFolder.of(folder)
    documents = all_evidence(opened)
    if not documents:
        raise CardError(f"{opened.path}: no evidence, so there is nothing to submit")
    described = opened.config.recipe
    name = public_name(described.name, opened.sha256)
    if target == "eval-results":
        text = eval_results(documents, repo)
        if text is None:
            raise CardError(
                f"{opened.path}: the Hub's results are about datasets of the Hub "
                f"({', '.join(HUB_DATASETS.values())}), and this evidence is about "
                f"{', '.join(dict.fromkeys(e.doc['dataset']['id'] for e in documents))}"
            )
        return {EVAL_RESULTS: text, **_benchmarks(documents)}
    if target == "robustbench":
        standard = _standard(opened.path, documents)
        terms = [(e.threat_model, _images(e)) for e in standard]
        files = _names([(f"{name}.{of.norm}", f"-{_plain(of.epsilon_text)}.{on}") for of, on in terms])
        return {f"{file}.json": robustbench(described, e) for file, e in zip(files, standard, strict=True)}
    return {f"{name}.json": every_eval_ever(name, described, documents, repo)}


def _images(evidence: Evidence) -> str:
    """cifar10-test-all, for example."""
    dataset = evidence.doc["dataset"]
    return re.sub(r"[^A-Za-z0-9._+-]", "-", f"{dataset['id']}-{dataset['split']}-{dataset['subset']}")


def _names(names: Sequence[tuple[str, str]]) -> list[str]:
    """A name for each, none twice: the first of a pair alone where no other has it, else with the second
    behind it, and a number where that is no difference either."""
    first = Counter(name for name, _ in names)
    found: list[str] = []
    taken: set[str] = set()  # names of files differ in more than case
    for name, more in names:
        whole = shown = name if first[name] == 1 else name + more
        number = 1
        while shown.lower() in taken:
            number += 1
            shown = f"{whole}-{number}"
        taken.add(shown.lower())
        found.append(shown)
    return found


def task_id(evidence: Evidence) -> str:
    """Of a threat model and protocol: linf-8-255-aa-standard."""
    threat_model = evidence.threat_model
    return f"{threat_model.norm}-{_plain(threat_model.epsilon_text)}-{evidence.doc['protocol']['name']}"


def _plain(epsilon_text: str) -> str:
    return epsilon_text.replace("/", "-")


def eval_results(documents: Sequence[Evidence], repo: str | None) -> str | None:
    """The text of `.eval_results/robustzoo.yaml`; None where no Evidence is about a dataset of the Hub.

    `verifyToken` is the Hub's to give and never written.
    """
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    linked = {"source_url": _URL.format(repo), "source_name": "verdict on every image"}
    entries = [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=task,
            value=round(evidence.robust_accuracy.value, 6),
            date=evidence.doc["run"]["started"],
            notes=_notes(evidence),
            **({} if repo is None else linked),
        )
        for (dataset, task), evidence in _tasks(documents).items()
    ]
    if not entries:
        return None
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, width=10_000)


def _tasks(documents: Sequence[Evidence]) -> dict[tuple[str, str], Evidence]:
    """(Dataset of the Hub, task) -> the one Evidence that speaks of it there: about test images before
    others, then on the most."""
    found: dict[tuple[str, str], Evidence] = {}
    for evidence in sorted(
        documents, key=lambda e: (e.doc["dataset"]["split"] != "test", -e.doc["counts"]["n"])
    ):
        dataset = HUB_DATASETS.get(evidence.doc["dataset"]["id"])
        if dataset is not None:
            found.setdefault((dataset, task_id(evidence)), evidence)
    return found


def _notes(evidence: Evidence) -> str:
    doc, robust, clean = evidence.doc, evidence.robust_accuracy, evidence.clean_accuracy
    return (
        f"{robust.correct} of {robust.n} images robust, 95 % interval {robust.interval}; "
        f"clean {clean.correct} of {clean.n}; {doc['dataset']['split']}, subset {doc['dataset']['subset']}; "
        f"protocol digest {doc['protocol']['digest'][:12]}, seed {doc['seed']}"
    )


def _benchmarks(documents: Sequence[Evidence]) -> dict[str, str]:
    """`eval.yaml` of each dataset's repository, in a folder of its name: what its owner would add there."""
    import yaml

    files = {}
    chosen = _tasks(documents)
    for key, repo in HUB_DATASETS.items():
        tasks = [
            {"id": task, "config": _CONFIGS.get(key, "default"), "split": evidence.doc["dataset"]["split"]}
            for (dataset, task), evidence in chosen.items()
            if dataset == repo
        ]
        if tasks:
            benchmark = {
                "name": f"Adversarial robustness on {DATASETS[key].title}",
                "description": "Share of images that are classified correctly under every attack of the "
                "protocol, within the perturbation that the task names.",
                "evaluation_framework": _PROJECT,
                "tasks": tasks,
            }
            files[f"{repo.replace('/', '--')}/eval.yaml"] = yaml.safe_dump(benchmark, sort_keys=False)
    return files


def _standard(place: Path, documents: Sequence[Evidence]) -> list[Evidence]:
    chosen = [e for e in documents if e.doc["protocol"]["name"] == "aa-standard"]
    if not chosen:
        raise CardError(
            f"{place}: RobustBench's numbers are those of the standard AutoAttack; run `robustzoo evaluate "
            f"{place} --protocol aa-standard` first"
        )
    return chosen


def robustbench(described: Any, evidence: Evidence) -> str:
    """A file of `model_info/`; what only the authors can say is left empty for them."""
    imported = isinstance(described, Imported)
    title = described.architecture if imported else network_title(described.architecture)
    robust, clean, doc = evidence.robust_accuracy, evidence.clean_accuracy, evidence.doc
    extra = None if imported else described.extra_data != "none"
    document = {
        "link": "",
        "name": "",
        "authors": "",
        "additional_data": extra,
        "number_forward_passes": 1,
        "dataset": doc["dataset"]["id"],
        "venue": "",
        "architecture": title,
        "eps": evidence.threat_model.epsilon_text,
        "clean_acc": f"{100 * clean.value:.2f}",
        "reported": f"{100 * robust.value:.2f}",
        "autoattack_acc": f"{100 * robust.value:.2f}",
        "footnote": f"{_NORMS[evidence.threat_model.norm]}. {_notes(evidence)}. Weights sha256 "
        f"{doc['model']['sha256']}.",
        "unreliable": False,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def every_eval_ever(name: str, described: Any, documents: Sequence[Evidence], repo: str | None) -> str:
    """A record of Every Eval Ever: each accuracy with its exact interval; scores are shares. No two results
    have one name, and no clean accuracy stands there twice."""
    results: list[dict[str, Any]] = []
    names = []
    clean = set()
    for evidence in documents:
        of_clean, of_attacked = _results(evidence)
        said = (evidence.doc["dataset"]["digest"], evidence.clean_accuracy)
        if said not in clean:
            clean.add(said)
            results.append(of_clean)
            names.append((of_clean["evaluation_name"], f"-{_images(evidence)}"))
        results.append(of_attacked)
        names.append((of_attacked["evaluation_name"], f"-{_images(evidence)}"))
    for result, shown in zip(results, _names(names), strict=True):
        result["evaluation_name"] = shown
    started = documents[0].doc["run"]["started"]
    document = {
        "schema_version": EVERY_EVAL_EVER,
        "evaluation_id": f"{_PROJECT}/{name}/{started}",
        "evaluation_timestamp": started,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {
            "source_name": _PROJECT,
            "source_type": "evaluation_run",
            "source_organization_name": "" if repo is None else repo.partition("/")[0],
            "evaluator_relationship": "third_party" if isinstance(described, Imported) else "first_party",
        },
        "eval_library": {
            "name": _PROJECT,
            "version": documents[0].doc["run"]["versions"].get(_PROJECT, "unknown"),
        },
        "model_info": {
            "name": name,
            "id": repo or name,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown" if repo is None else "open_weights",
                "weights_sha256": documents[0].doc["model"]["sha256"],
            },
        },
        "evaluation_results": results,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _results(evidence: Evidence) -> list[dict[str, Any]]:
    """The clean and the robust accuracy of one Evidence."""
    doc = evidence.doc
    dataset = doc["dataset"]
    repo = HUB_DATASETS.get(dataset["id"])
    source: dict[str, Any] = {"dataset_name": dataset["id"], "source_type": "other"}
    if repo is not None:
        source = {
            "dataset_name": dataset["id"],
            "source_type": "hf_dataset",
            "hf_repo": repo,
            "hf_split": dataset["split"],
            "samples_number": doc["counts"]["n"],
        }
    details = {
        "subset": dataset["subset"],
        "pixel_digest": dataset["digest"],
        "seed": str(doc["seed"]),
        "protocol_digest": doc["protocol"]["digest"],
    }
    described = (
        f"worst case over {doc['protocol']['name']} within {threat(evidence.threat_model)} "
        f"({evidence.threat_model.eps:.6g}), pixels in [0, 1]"
    )
    if corruption_tables.is_about(evidence):
        described = f"right clean and under all {threat(evidence.threat_model)}"
    return [
        _result("clean", "no attack", evidence.clean_accuracy, source, details),
        _result(task_id(evidence), described, evidence.robust_accuracy, source, details),
    ]


def _result(
    name: str, described: str, accuracy: Accuracy, source: dict[str, Any], details: dict[str, str]
) -> dict[str, Any]:
    return {
        "evaluation_name": name,
        "source_data": source,
        "metric_config": {
            "evaluation_description": f"share of images classified correctly: {described}",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {
            "score": accuracy.value,
            "details": {"correct": str(accuracy.correct), "n": str(accuracy.n), **details},
            "uncertainty": {
                "confidence_interval": {
                    "lower": accuracy.low,
                    "upper": accuracy.high,
                    "confidence_level": 0.95,
                    "method": "Clopper-Pearson",
                },
                "num_samples": accuracy.n,
            },
        },
    }
