"""The run folder: config.json, metrics.jsonl, checkpoints that are whole or absent, and the exported model.

RUN/config.json            what was started: recipe, layout, seed, versions
RUN/metrics.jsonl          one JSON object per logged step
RUN/checkpoints/latest     name of the newest checkpoint, for DeepSpeed's own tools
RUN/checkpoints/step_00000200/
RUN/model/                 the model folder, once training has ended
RUN/model.sha256           the hash of its weights, as `sha256sum -c` reads it
RUN/model_best/            that of the best checkpoint, where it was asked for (`export --best`)
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe
from robustzoo.registry.digests import sha256_file
from robustzoo.training.checkpoints import Checkpoints

SCHEMA = "robustzoo.run/1"
ANEW = "restore it, or begin a new run in another --out"


def export_command(run: Path) -> str:
    """What writes the model folder of a run from a checkpoint, for a shell."""
    return f"python -m robustzoo.training export {shlex.quote(str(run))}"


def hash_file(model: Path) -> Path:
    """Beside a model folder of a run: the SHA-256 of the weights that were exported to it."""
    return model.with_name(f"{model.name}.sha256")


class RunFolder(Checkpoints):
    """Paths and rules of one run. Only rank 0 changes anything in it, DeepSpeed's own files excepted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "checkpoints")
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.model = path / "model"
        self.model_best = path / "model_best"

    def check(self, settings: dict[str, Any], last_step: int, *, resume: bool) -> int:
        """Whether a run may start or continue here: the optimizer steps already done. Writes nothing.

        Args:
            settings: JSON-able; what is under the key "fixed" must be the same when a run is resumed. A run
                without a checkpoint resumes at step 0.
            last_step: optimizer steps after which the run is to end.

        Raises:
            RobustzooError: as `check_place`; a run with other fixed settings or of more steps, a damaged
                newest checkpoint, or a config.json whose recipe is none.
        """
        self.check_place(resume=resume)
        if not resume:
            return 0
        self.recipe()
        before, fixed = self.settings()["fixed"], settings["fixed"]
        changed = [key for key in sorted({*before, *fixed}) if before.get(key) != fixed.get(key)]
        if changed:
            listed = _differences(self.settings(), settings, changed)
            raise RobustzooError(
                f"cannot resume {self.path} with other settings: {listed}. Start it as before (config.json "
                "has its command), or begin a new run in another --out"
            )
        done = self.newest_step() or 0
        if done > last_step:
            raise RobustzooError(
                f"{self.path} has {done:,} steps done already, more than the {last_step:,} asked for: leave "
                "--max-steps out or raise it, or begin a new run in another --out"
            )
        return done

    def check_place(self, *, resume: bool) -> None:
        """The part of `check` that needs nothing but the folder. Writes nothing.

        Raises:
            RobustzooError: no folder can be here, one in use without `resume`, or no run to resume.
        """
        if (reason := atomic_files.why_unwritable(self.path)) is not None:
            raise RobustzooError(f"{reason}; choose another --out")
        try:
            in_use = self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir())
        except OSError as error:
            raise RobustzooError(f"cannot use {self.path}: {error}; choose another --out") from error
        if resume and not in_use:
            raise RobustzooError(f"{self.path} has no run to resume; leave out --resume to start one there")
        if resume:
            self.settings()
        elif in_use and self.config.exists():
            raise RobustzooError(
                f"{self.path} is not empty; continue its run with --resume, or choose another --out"
            )
        elif in_use:
            raise RobustzooError(f"{self.path} is not empty, and holds no run; choose another --out")

    def hold(self) -> None:
        """Make the folder, and keep it as long as this object lives: two trainings never write in one.

        Raises:
            RobustzooError: another process trains here, or nothing can be written.
        """
        try:
            self._held = atomic_files.hold(self.path)
        except atomic_files.FolderInUse as error:
            raise RobustzooError(
                f"another process is training in {self.path}; wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise RobustzooError(f"cannot write in {self.path}: {error}; choose another --out") from error

    def release(self) -> None:
        """Let go of what `hold` keeps."""
        self._held = None

    def check_free(self) -> None:
        """Raise RobustzooError where another process trains here; what `hold` says, before time is spent."""
        if (self.path / atomic_files.LOCK).exists():
            self.hold()
            self.release()

    def claim(self, settings: dict[str, Any], last_step: int, done: int, *, resume: bool) -> None:
        """`hold` the folder, if it still is what `check` found: another training may have come in between.

        Raises:
            RobustzooError: another process trains there, or has.
        """
        self.hold()
        try:
            now = self.check(settings, last_step, resume=resume)
            if now != done:
                raise RobustzooError(
                    f"another process has trained in {self.path} while this one started: {now:,} steps are "
                    f"done now, {done:,} were then; start again, with --resume"
                )
        except RobustzooError:
            self.release()
            raise

    def begin(self, settings: dict[str, Any]) -> None:
        """Write config.json where there is none, and remove what a killed process left behind.

        Raises:
            RobustzooError: nothing can be written there.
        """
        try:
            if not self.config.exists():
                atomic_files.write_text(
                    self.config, json.dumps({"schema": SCHEMA} | settings, indent=1) + "\n"
                )
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise RobustzooError(f"cannot write in {self.path}: {error}; choose another --out") from error
        self.sweep()

    def settings(self) -> dict[str, Any]:
        """What config.json says. Raises RobustzooError where it is absent or no configuration of ours."""
        try:
            document = json.loads(self.config.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RobustzooError(
                f"{self.path} is not a run folder: it has no config.json; give the --out of a run"
            ) from error
        except (OSError, ValueError) as error:
            raise RobustzooError(f"{self.config} cannot be read: {error}; {ANEW}") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise RobustzooError(f"{self.config} is not a configuration of schema {SCHEMA}; {ANEW}")
        for key in ("fixed", "recipe"):
            if not isinstance(document.get(key), dict):
                raise RobustzooError(f"{self.config} has no {key!r}, so it is damaged; {ANEW}")
        return document

    def recipe(self) -> Recipe:
        """The recipe that the run was begun with. Raises RobustzooError where config.json has it not."""
        settings = self.settings()
        try:
            begun = Recipe.from_json(settings["recipe"])
        except (RobustzooError, TypeError) as error:
            raise RobustzooError(f"{self.config} is damaged: {error}; {ANEW}") from error
        if begun.digest != settings["fixed"].get("recipe_digest"):
            raise RobustzooError(
                f"{self.config} is damaged: its recipe, {begun.name}, is not that of its recipe_digest; "
                f"{ANEW}"
            )
        return begun

    def exported_intact(self) -> bool:
        """Whether the weights in `model` are those that were exported; True where no hash of them is kept."""
        try:
            known = hash_file(self.model).read_text(encoding="utf-8").split()[0]
        except (OSError, ValueError, IndexError):
            return True
        return known == sha256_file(self.model / "model.safetensors")


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
