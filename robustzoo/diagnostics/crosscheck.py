"""Cross-check: our attacks and another package's, one by one, on the same images; agreement per sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from robustzoo.attacks.protocols import SINGLE_ATTACKS, protocol
from robustzoo.diagnostics.engines import Engine, open_engine
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.prepare import Prepared, ask, identify, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.witnessing import inside, margins
from robustzoo.evaluation.workers import attacked

DEFAULT_ATTACKS = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass
class Agreement:
    """One attack of both, alone on every correctly classified image: ids that each broke, ascending."""

    attack: str
    ours: list[int]
    theirs: list[int]

    @property
    def only_ours(self) -> int:
        return len(set(self.ours) - set(self.theirs))

    @property
    def only_theirs(self) -> int:
        return len(set(self.theirs) - set(self.ours))


@dataclass
class CrossCheck:
    """Both engines' verdicts. `correct`: how many images were attacked; rows per attack, then the worst
    case."""

    model: str
    engine: str
    threat_model: str
    images: str
    n: int
    correct: int
    seed: int
    rows: list[Agreement] = field(default_factory=list)

    @property
    def worst_case(self) -> Agreement:
        """An image counts as broken where any of the attacks broke it."""
        sides = ([row.ours for row in self.rows], [row.theirs for row in self.rows])
        return Agreement("worst case", *(sorted(set().union(*side)) for side in sides))

    def text(self) -> str:
        """For people, several lines, no final newline."""
        lines = [
            f"{self.model} under {self.threat_model}: {self.images}, {self.n} images, {self.correct} of them "
            "classified correctly",
            "each attack alone on all of these, with the same steps, targets and restarts on both sides",
            "",
            f"{'images left robust by':<22}{'robustzoo':>10}{self.engine:>22}{'agree':>9}"
            f"{'broken by one only':>22}",
        ]
        for row in (*self.rows, self.worst_case):
            apart = row.only_ours + row.only_theirs
            agree = f"{100 * (1 - apart / self.correct):.1f} %" if self.correct else "-"
            lines.append(
                f"{row.attack:<22}{self.correct - len(row.ours):>10}{self.correct - len(row.theirs):>22}"
                f"{agree:>9}{f'{row.only_ours} and {row.only_theirs}':>22}"
            )
        lines += [
            "",
            f"seed {self.seed}; what {self.engine} returns counts where it fools the model in float32, in "
            "ball and box",
            f"the column of {self.engine} is its own result, and no AutoAttack number of robustzoo",
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same for machines, with the ids that each broke."""
        head = {key: value for key, value in vars(self).items() if key != "rows"}
        rows = [
            {**vars(row), "only_ours": row.only_ours, "only_theirs": row.only_theirs}
            for row in (*self.rows, self.worst_case)
        ]
        return {"schema": "robustzoo.crosscheck/1", **head, "attacks": rows}


def crosscheck(
    model: nn.Module,
    data: Any,
    threat_model: Any = None,
    *,
    engine: str = "autoattack",
    attacks: Sequence[str] = DEFAULT_ATTACKS,
    n: int | None = 100,
    seed: int = 0,
    workers: int = 1,
    name: str | None = None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> CrossCheck:
    """Run attacks of ours and their counterparts of another package, and compare the verdicts.

    Args:
        model, data, threat_model, n, seed: as `evaluate`.
        engine: "autoattack" (pyautoattack, or autoattack where that is installed) or "torchattacks".
        attacks: names such as apgd-ce; see DEFAULT_ATTACKS.
        workers: processes for our side; the other package runs in this one.
        name: what the result calls the model.
        options: device, micro_batch_size, data_root, as `evaluate`.

    Raises:
        RobustzooError: an engine or attack that cannot be used; else as `evaluate`.
    """
    unknown = [attack for attack in attacks if attack not in SINGLE_ATTACKS]
    if unknown or not attacks or len(set(attacks)) != len(attacks):
        raise RobustzooError(
            f"attacks are {', '.join(attacks) or 'none'}; expected some of {', '.join(SINGLE_ATTACKS)}, each "
            "once"
        )
    asked = ask(model, threat_model, attacks[0], n=n, at_most=True, seed=seed, **options)
    identity = identify(model, name)
    with Reporter(progress) as reporter, prepare(model, data, asked, reporter, identity.sha256) as ready:
        ready = ready.sized(asked.micro_batch_size)
        other = open_engine(engine, model, asked.threat_model, seed)
        dataset, correct = ready.dataset, ready.correct()
        result = CrossCheck(
            identity.name,
            other.title,
            str(asked.threat_model),
            f"{dataset.key} {dataset.split}, {ready.subset.id}",
            len(ready.subset),
            len(correct),
            seed,
        )
        for attack in attacks if correct else ():
            theirs = _theirs(ready, correct, other, attack, reporter)
            kept, _ = attacked(ready.attacking(attack), correct, workers, reporter)
            ours = [i for i in correct if i not in set(kept)]
            result.rows.append(Agreement(attack, ours, theirs))
            reporter.say(f"{attack}: {len(ours)} broken by robustzoo, {len(theirs)} by {other.title}")
    return result


def _theirs(
    ready: Prepared, correct: list[int], engine: Engine, attack: str, reporter: Reporter
) -> list[int]:
    """Ids that the engine broke: judged here, in float32, inside ball and box."""
    threat_model, device, size = ready.asked.threat_model, ready.asked.device, ready.work.micro_batch_size
    (member,) = protocol(attack, threat_model, ready.work.num_classes).attacks
    broken: list[int] = []
    done = 0
    for ids, x, labels in ready.batches(correct):
        points = engine.run(member, x, labels).float().cpu()
        legal = inside(points, x.cpu(), threat_model).tolist()
        found = margins(ready.model, points, labels.tolist(), size, device).tolist()
        broken += [i for i, ok, margin in zip(ids, legal, found, strict=True) if ok and margin > 0]
        done += len(ids)
        reporter.update(f"{attack} of {engine.title}", done, len(correct))
    return broken
