"""The run folder: config.json, metrics.jsonl, checkpoints that are whole or absent, and the exported model.

    RUN/config.json            what was started: recipe, layout, seed, versions
    RUN/metrics.jsonl          one JSON object per logged step
    RUN/checkpoints/latest     name of the newest checkpoint, for DeepSpeed's own tools
    RUN/checkpoints/step_00000200/
    RUN/model/                 the model folder, once training has ended
    RUN/model.sha256           the hash of its weights, as `sha256sum -c` reads it
    RUN/model_best/            that of the best checkpoint, where it was asked for (training/export.py --best)

A checkpoint is written under a temporary name and renamed once every byte is on the disk: a process killed at
any moment leaves the previous checkpoint, or the new one, and never a part of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustzoo import atomic_files, folder_lock
from training.best import NO_READING, Best

SCHEMA = "robustzoo.run/1"
_TEMPORARY, _DISCARDED, _MANIFEST = ".writing-", ".discarded-", "manifest.json"
_NAME = re.compile(r"step_([0-9]{8,})")
ANEW = "restore it, or begin a new run in another --out"


def averages_file(rank: int | None) -> str:
    """Name of the averaged weights in a checkpoint, or of the parts of them that a rank keeps (ZeRO 3)."""
    return f"averaged_weights{'' if rank is None else f'_rank{rank:05d}'}.safetensors"


def hash_file(model: Path) -> Path:
    """Beside a model folder of a run: the SHA-256 of the weights that were exported to it."""
    return model.with_name(f"{model.name}.sha256")


class RunFolderError(ValueError):
    """A run folder that cannot be used as asked."""


class RunFolder:
    """Paths and rules of one run. Only rank 0 changes anything in it, DeepSpeed's own files excepted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.model_best = path / "model_best"

    def check(self, settings: dict[str, Any], *, resume: bool) -> int:
        """Whether a run may start or continue here: the optimizer steps already done. Writes nothing.

        settings: JSON-able; what is under the key "fixed" must be the same when a run is resumed. A run
        without a checkpoint resumes at step 0.

        Raises:
            RunFolderError: as `check_place`, a run with other fixed settings, or a damaged newest checkpoint.
        """
        self.check_place(resume=resume)
        if not resume:
            return 0
        before, fixed = self.settings()["fixed"], settings["fixed"]
        changed = [key for key in sorted({*before, *fixed}) if before.get(key) != fixed.get(key)]
        if changed:
            listed = _differences(self.settings(), settings, changed)
            raise RunFolderError(
                f"cannot resume {self.path} with other settings: {listed}. Start it as before (config.json "
                "has its command), or begin a new run in another --out"
            )
        return self.newest_step() or 0

    def check_place(self, *, resume: bool) -> None:
        """The part of `check` that needs nothing but the folder. Writes nothing.

        Raises:
            RunFolderError: no folder can be here, one in use without `resume`, or no run to resume.
        """
        try:
            here = self.path.absolute()
            place = atomic_files.nearest_existing(here)
            if not place.is_dir():
                raise RunFolderError(f"{place} is a file; choose another --out")
            if not os.access(place, os.W_OK | os.X_OK):
                raise RunFolderError(f"{place} is not writable; choose another --out")
            in_use = place == here and any(not p.name.startswith(".") for p in place.iterdir())
        except OSError as error:
            raise RunFolderError(f"cannot use {self.path}: {error}; choose another --out") from error
        if resume and not in_use:
            raise RunFolderError(f"{self.path} has no run to resume; leave out --resume to start one there")
        if resume:
            self.settings()
        elif in_use and self.config.exists():
            raise RunFolderError(
                f"{self.path} is not empty; continue its run with --resume, or choose another --out"
            )
        elif in_use:
            raise RunFolderError(f"{self.path} is not empty, and holds no run; choose another --out")

    def claim(self) -> None:
        """Make the folder, and keep it as long as this object lives: two trainings never write in one.

        Raises:
            RunFolderError: another process trains here, or nothing can be written.
        """
        try:
            self._held = folder_lock.hold(self.path)
        except folder_lock.FolderInUse as error:
            raise RunFolderError(
                f"another process is training in {self.path}; wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise RunFolderError(f"cannot write in {self.path}: {error}; choose another --out") from error

    def release(self) -> None:
        """Let go of what `claim` keeps."""
        self._held = None

    def check_free(self) -> None:
        """Raise RunFolderError where another process trains here; what `claim` says, before time is spent."""
        if (self.path / folder_lock.NAME).exists():
            self.claim()
            self.release()

    def begin(self, settings: dict[str, Any]) -> None:
        """Write config.json where there is none, and remove what a killed process left behind.

        Raises:
            RunFolderError: nothing can be written there.
        """
        try:
            if not self.config.exists():
                atomic_files.write_text(
                    self.config, json.dumps({"schema": SCHEMA} | settings, indent=1) + "\n"
                )
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot write in {self.path}: {error}; choose another --out") from error
        for prefix in (_TEMPORARY, _DISCARDED):
            for path in self.checkpoints.glob(f"{prefix}*"):
                shutil.rmtree(path)

    def settings(self) -> dict[str, Any]:
        """What config.json says. Raises RunFolderError where it is absent or no configuration of ours."""
        try:
            document = json.loads(self.config.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(
                f"{self.path} is not a run folder: it has no config.json; give the --out of a run"
            ) from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.config} cannot be read: {error}; {ANEW}") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise RunFolderError(f"{self.config} is not a configuration of schema {SCHEMA}; {ANEW}")
        for key in ("fixed", "recipe"):
            if not isinstance(document.get(key), dict):
                raise RunFolderError(f"{self.config} has no {key!r}, so it is damaged; {ANEW}")
        return document

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
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(files)
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

    def exported_intact(self) -> bool:
        """Whether the weights in `model` are those that were exported; True where no hash of them is kept."""
        try:
            known = hash_file(self.model).read_text(encoding="utf-8").split()[0]
        except (OSError, ValueError, IndexError):
            return True
        return known == _sha256(self.model / "model.safetensors")

    def latest_step(self) -> int | None:
        """Step of the newest whole checkpoint, None where there is none."""
        whole = [step for step in self._steps() if self._damage(step) is None]
        return whole[-1] if whole else None

    def newest_step(self) -> int | None:
        """Step of the newest checkpoint, None where there is none.

        Raises:
            RunFolderError: it is not whole. It was when it got its name, so something happened to it, and the
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
        raise RunFolderError(
            f"the checkpoint {folder} is damaged: {damage}; restore it, or delete {' and '.join(doomed)} to "
            f"{go_on}"
        )

    def check_intact(self, step: int) -> None:
        """Read the checkpoint after `step` steps, every byte.

        Raises:
            RunFolderError: it is not there, or a file of it is not the one that was written.
        """
        folder = self.checkpoint(step)
        if (damage := self._damage(step)) is not None:
            raise RunFolderError(f"the checkpoint {folder} is damaged: {damage}; restore it")
        for name, file in self._files(step).items():
            if _sha256(folder / name) != file["sha256"]:
                raise RunFolderError(
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
            sizes = {name: file["bytes"] for name, file in self._files(step).items()}
        except FileNotFoundError:
            return f"it has no {_MANIFEST}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"its {_MANIFEST} cannot be read ({error})"
        for name, size in sizes.items():
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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _differences(before: dict[str, Any], now: dict[str, Any], changed: list[str]) -> str:
    """What differs between two settings, in words; a changed recipe as its fields."""
    parts = []
    if "recipe_digest" in changed:
        then, asked = before["recipe"], now["recipe"]
        fields = [key for key in asked if key not in ("name", "sources") and asked[key] != then.get(key)]
        parts.append(f"recipe {then.get('name')} then, {asked['name']} now")
        parts += [f"{key} was {then.get(key)!r}, now {asked[key]!r}" for key in fields]
    for key in changed:
        if key != "recipe_digest":
            parts.append(f"{key} was {before['fixed'].get(key)!r}, now {now['fixed'].get(key)!r}")
    return "; ".join(parts)
