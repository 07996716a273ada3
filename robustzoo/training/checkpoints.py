"""The checkpoints of a run: whole or absent, the newest ones and the best kept, a damaged one named.

A checkpoint is written under a temporary name and renamed once every byte is on the disk: a process killed at
any moment leaves the previous checkpoint, or the new one, and never a part of one.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry.digests import sha256_file

_TEMPORARY, _DISCARDED, _MANIFEST = ".writing-", ".discarded-", "manifest.json"
_NAME = re.compile(r"step_([0-9]{8,})")


def averages_file(rank: int | None) -> str:
    """Name of the averaged weights in a checkpoint, or of the parts of them that a rank keeps (ZeRO 3)."""
    return f"averaged_weights{'' if rank is None else f'_rank{rank:05d}'}.safetensors"


@dataclass(frozen=True)
class Best:
    """The highest held-out robust accuracy so far: which checkpoint to keep, and when to stop early.

    Attributes:
        step: optimizer steps done at that reading; 0 before any.
        accuracy: in [0, 1].
        readings_since: readings since then that were no higher.
    """

    step: int = 0
    accuracy: float = -1.0
    readings_since: int = 0

    def after(self, step: int, accuracy: float) -> Best:
        """With one more reading; of equal ones the first stays the best."""
        if accuracy > self.accuracy:
            return Best(step, accuracy)
        return Best(self.step, self.accuracy, self.readings_since + 1)

    def stops(self, patience: int | None) -> bool:
        """Whether `patience` readings in a row brought nothing; never where it is None."""
        return patience is not None and self.readings_since >= patience


NO_READING = Best()


class Checkpoints:
    """Paths and rules of the checkpoints in one folder."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints

    def sweep(self) -> None:
        """Remove what a killed process left behind: checkpoints half written, or half deleted."""
        for prefix in (_TEMPORARY, _DISCARDED):
            for path in self.checkpoints.glob(f"{prefix}*"):
                shutil.rmtree(path)

    def checkpoint(self, step: int) -> Path:
        """Folder of the whole checkpoint after `step` optimizer steps."""
        return self.checkpoints / f"step_{step:08d}"

    def writing(self, step: int) -> Path:
        """Where that checkpoint is written before `commit`."""
        return self.checkpoints / f"{_TEMPORARY}step_{step:08d}"

    def commit(self, step: int, best: Best = NO_READING, keep: int = 2) -> None:
        """Make a completely written checkpoint visible, then discard what is older than the newest `keep`.

        Those are counted among whole checkpoints up to this one, and the best that each of them knows of is
        kept too. Checkpoints after `step` are left alone until the run has come past them: they may have been
        put back by hand.

        best: the best reading so far, kept with the checkpoint; its step is that of a checkpoint, or 0.
        """
        written, final = self.writing(step), self.checkpoint(step)
        files = [path for path in written.iterdir() if path.is_file()]
        for path in files:
            atomic_files.sync(path)
        described = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in sorted(files)
        }
        manifest = {"step": step, "best": asdict(best), "files": described}
        atomic_files.write_text(written / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
        if final.exists():
            self._discard(final)
        written.replace(final)
        atomic_files.sync(self.checkpoints)
        atomic_files.write_text(self.checkpoints / "latest", final.name + "\n")
        until_now = [known for known in self._steps() if known <= step]
        newest = [known for known in until_now if self._damage(known) is None][-keep:]
        # The best of each: should the newest be damaged, the one before still has its own.
        kept = {*newest, *(self.best(newest_step).step for newest_step in newest)}
        for step_before in until_now:
            if step_before not in kept:
                self._discard(self.checkpoint(step_before))

    def give_up(self, step: int) -> None:
        """Remove what `writing` has of a checkpoint that cannot be completed: it only takes up space."""
        shutil.rmtree(self.writing(step), ignore_errors=True)

    def best(self, step: int) -> Best:
        """The best reading that the checkpoint after `step` steps knows of; none for step 0."""
        try:
            manifest = json.loads((self.checkpoint(step) / _MANIFEST).read_text(encoding="utf-8"))
            return Best(**manifest["best"])
        except (OSError, ValueError, KeyError, TypeError):
            return NO_READING

    def latest_step(self) -> int | None:
        """Step of the newest whole checkpoint, None where there is none."""
        whole = [step for step in self._steps() if self._damage(step) is None]
        return whole[-1] if whole else None

    def newest_step(self) -> int | None:
        """Step of the newest checkpoint, None where there is none.

        Raises:
            RobustzooError: it is not whole. It was when it got its name, so something happened to it, and the
                one before is no silent substitute.
        """
        steps = self._steps()
        if not steps:
            return None
        damage, before = self._damage(steps[-1]), self.latest_step()
        if damage is None:
            return steps[-1]
        folder = self.checkpoint(steps[-1])
        doomed = [self.checkpoint(step).name for step in steps if before is None or step > before]
        go_on = "begin at step 0" if before is None else f"go on from {self.checkpoint(before).name}"
        raise RobustzooError(
            f"the checkpoint {folder} is damaged: {damage}; restore it, or delete {' and '.join(doomed)} to "
            f"{go_on}"
        )

    def chosen(self, *, best: bool) -> int:
        """The step of the checkpoint to export, the newest or the best.

        Raises:
            RobustzooError: no checkpoint, a damaged newest one, or no validation yet.
        """
        run, step = self.checkpoints.parent, self.newest_step()
        if step is None:
            raise RobustzooError(f"{run} has no checkpoint; train first, or continue with --resume")
        if not best:
            return step
        step = self.best(step).step
        if step == 0:
            raise RobustzooError(f"{run} has no validation yet, and so no best checkpoint; train on")
        if not self.checkpoint(step).is_dir():
            raise RobustzooError(
                f"the best checkpoint, {self.checkpoint(step)}, is not there; restore it, or leave out --best"
            )
        return step

    def check_intact(self, step: int) -> None:
        """Read the checkpoint after `step` steps, every byte.

        Raises:
            RobustzooError: it is not there, or a file of it is not the one that was written.
        """
        folder = self.checkpoint(step)
        if (damage := self._damage(step)) is not None:
            raise RobustzooError(f"the checkpoint {folder} is damaged: {damage}; restore it")
        for name, file in self._files(step).items():
            if sha256_file(folder / name) != file["sha256"]:
                raise RobustzooError(
                    f"{folder / name} is damaged: it has not the sha256 it was written with; restore it, or "
                    f"delete {folder} to go on from the checkpoint before"
                )

    def _files(self, step: int) -> dict[str, Any]:
        """The files of a checkpoint as its manifest describes them."""
        files: dict[str, Any] = json.loads((self.checkpoint(step) / _MANIFEST).read_text(encoding="utf-8"))[
            "files"
        ]
        return files

    def _steps(self) -> list[int]:
        """Steps of all checkpoints, in order; names that no checkpoint has (a copy, say) are not ours."""
        found = (_NAME.fullmatch(path.name) for path in self.checkpoints.glob("step_*") if path.is_dir())
        steps = (int(name[1]) for name in found if name)
        return sorted(step for step in steps if self.checkpoint(step).is_dir())

    def _damage(self, step: int) -> str | None:
        """What is missing of a checkpoint, or of another size than when it was written; None: it is whole."""
        folder = self.checkpoint(step)
        try:
            files = [
                (name, int(file["bytes"]), str(file["sha256"])) for name, file in self._files(step).items()
            ]
        except FileNotFoundError:
            return f"it has no {_MANIFEST}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"its {_MANIFEST} cannot be read ({error})"
        for name, size, _ in files:
            try:
                found = (folder / name).stat().st_size
            except OSError:
                return f"{name} is missing"
            if found != size:
                return f"{name} has {found:,} bytes and was written with {size:,}"
        return None

    def _discard(self, folder: Path) -> None:
        # Renamed first: a checkpoint that is half deleted must not carry the name of a whole one.
        doomed = folder.with_name(_DISCARDED + folder.name)
        shutil.rmtree(doomed, ignore_errors=True)
        folder.replace(doomed)
        shutil.rmtree(doomed)
