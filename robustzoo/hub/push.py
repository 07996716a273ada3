"""A checked model folder -> one commit and a tag of a Hub repository, fetched again and compared.

Whatever cuts it short leaves nothing or a whole commit there: running it again finds what is done, and goes
on.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from robustzoo import atomic_files
from robustzoo.cards.claims import CardError
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence
from robustzoo.cards.imported import Imported
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.errors import RobustzooError
from robustzoo.hub import publish
from robustzoo.hub.fetch import PREFIX, RequestFailed, ask, fetch_folder
from robustzoo.hub.references import split_reference
from robustzoo.hub.submissions import EVAL_RESULTS, eval_results
from robustzoo.models.config import UNLICENSED
from robustzoo.models.folder import ModelFolder, read_folder
from robustzoo.registry import entries, published
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import Entry, Weights
from robustzoo.registry.names import unpublished_name
from robustzoo.verification.verify import verify

_CARD = "README.md"
_ANOTHER_HEAD = (409, 412)
_EVIDENCE = re.compile(r"evidence/[^/]+\.json")


@dataclass(frozen=True)
class Publication:
    """A folder that may be published.

    Attributes:
        repo: "OWNER/NAME".
        folder: with its weights' hash.
        made: path in the repository -> content of what is made of the folder: the card and its pictures.
        files: path in the repository -> the file here, of the rest.
        ids: path in the repository -> SHA-256 of a large file, git's hash of another.
        locked: whether the registry's own lock file names it afterwards.
    """

    repo: str
    folder: ModelFolder
    made: dict[str, bytes]
    files: dict[str, Path]
    ids: dict[str, str]
    locked: bool

    @property
    def card(self) -> str:
        return self.made[_CARD].decode()


@dataclass(frozen=True)
class Difference:
    """What a repository has otherwise than a folder, as paths in it."""

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.removed)

    def lines(self) -> list[str]:
        """One line a path: `+` new, `~` changed, `-` removed."""
        marks = (("+", self.new), ("~", self.changed), ("-", self.removed))
        return [f"{mark} {path}" for mark, paths in marks for path in paths]


@dataclass(frozen=True)
class Published:
    """What came of it. reference: "hf-hub:OWNER/NAME@COMMIT"; pull: address of the proposal; entry: that of
    the lock file, where it has one now."""

    reference: str
    commit: str
    tag: str | None
    pull: str | None
    entry: Entry | None


def prepare(
    folder: str | PathLike[str], repo: str, *, lock: bool = True, data_root: str | Path | None = None
) -> Publication:
    """Check a folder for the Hub: it loads strictly, its evidence is there, about these weights, complete and
    about the images that it names, the card made of it is good, and the witnesses hold.

    Args:
        lock: False never enters it into the lock file; nor is it entered outside a checkout, under a changed
            recipe, or where the name stands for another model already.
        data_root: of images that must be given; without it such claims are not replayed.

    Raises:
        RobustzooError (a CardError, for example): what is wrong, and the next step.
    """
    if split_reference(repo)[1]:
        raise RobustzooError(f"{repo}: a repository is published to as OWNER/NAME, without a revision")
    opened = ModelFolder.of(folder)
    described = opened.config.recipe
    if isinstance(described, Imported) and described.code_file is not None:
        raise CardError(
            f"{described.name} was imported, and code in {described.code_file} builds it, which is not "
            "published to be run by others; share the folder as it is: robustzoo.load loads it, with trust"
        )
    read_folder(opened)
    if opened.config.license == UNLICENSED:
        raise CardError(
            f"{opened.path}: its author has not licensed these weights, so nobody may use what is published. "
            f"State the licence first: robustzoo card {opened.path} --licence apache-2.0 (or another SPDX "
            "identifier)"
        )
    locked = lock and _may_lock(opened, repo)
    made = publish.generated(opened, _name(opened, locked), data_root=data_root)
    results = eval_results(all_evidence(opened), repo.removeprefix(PREFIX))
    if results is not None:
        made[EVAL_RESULTS] = results.encode()
    publish.check_publishable(
        opened.path, None if not locked else _before(opened), opened.config.recipe.dataset if locked else None
    )
    files = {path.relative_to(opened.path).as_posix(): path for path in publish.files_to_publish(opened.path)}
    _replay(opened, made[_CARD].decode(), data_root)
    ids = {name: _file_id(path) for name, path in files.items()}
    ids |= {name: _git_id(content) for name, content in made.items()}
    if ids["model.safetensors"] != opened.sha256:
        raise RobustzooError(f"{opened.path}: the weights changed while they were checked; run it again")
    return Publication(repo.removeprefix(PREFIX), opened, made, files, ids, locked)


def _name(opened: ModelFolder, locked: bool) -> str:
    """What the card calls it: a registry name stands for the weights that the lock file names alone."""
    recipe = opened.config.recipe
    pin = entries.read_lock().get(recipe.name)
    if locked or recipe.name != recipe.base_name or (pin is not None and pin.sha256 == opened.sha256):
        return recipe.name
    return unpublished_name(recipe.name, opened.sha256)


def _may_lock(opened: ModelFolder, repo: str) -> bool:
    recipe = opened.config.recipe
    pin = entries.read_lock().get(recipe.name)
    free = pin is None or (pin.source == "hub" and pin.repo == repo)
    return free and recipe.name == recipe.base_name and publish.card_folder().is_dir()


def _before(opened: ModelFolder) -> Path | None:
    """The folder that the lock file names now."""
    pin = entries.read_lock().get(opened.config.recipe.name)
    return None if pin is None else fetch_folder(pin.repo, pin.commit)


def _replay(opened: ModelFolder, card: str, data_root: str | Path | None) -> None:
    needed = {evidence.doc["dataset"]["id"] for evidence in all_evidence(opened)} - {*WITHOUT_FILES}
    if needed and data_root is None:
        _say(f"the claims are not replayed: that needs images of {', '.join(needed)} (--data-root DIR)")
        return
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, _CARD)
        path.write_text(card, encoding="utf-8")
        report = verify(opened, card=path, mode="replay", data_root=data_root, progress=False)
    if report.exit_code in (1, 4):
        raise CardError(
            f"{opened.path}: the claims do not hold, replaying their witnesses says {report.outcome}; run "
            f"`robustzoo evaluate {opened.path}` again"
        )


def look(publication: Publication) -> tuple[dict[str, Any] | None, Difference]:
    """What the repository holds (None: there is none yet), and what publishing would change in it.

    Raises: RobustzooError, the Hub does not say; CardError, it says more of these weights than the folder.
    """
    state = _request(publication.repo, "asking what is there", "state")
    difference = _difference(publication.ids, {} if state is None else state["files"])
    if state is not None:
        _refuse_less(publication, state["head"], difference)
    return state, difference


def _refuse_less(publication: Publication, head: str, difference: Difference) -> None:
    """Evidence of the same weights that would go is replaced by evidence of as much alone."""
    gone = [name for name in (*difference.changed, *difference.removed) if _EVIDENCE.fullmatch(name)]
    if not gone:
        return
    repo, opened = publication.repo, publication.folder
    documents = all_evidence(opened)
    with tempfile.TemporaryDirectory() as cache:
        wanted: dict[str, Any] = {"revision": head, "cache_dir": cache, "patterns": ["evidence/*.json"]}
        place = _request(repo, "reading its evidence", "snapshot", **wanted)
        for name in gone:
            try:
                old = Evidence.load(Path(place, name))
            except (RobustzooError, OSError):
                continue  # it claims nothing
            if old.doc["model"]["sha256"] == opened.sha256:
                publish.refuse_less(
                    opened.path,
                    documents,
                    [old],
                    f"delete it there first (hf repos delete-files {repo} {name})",
                )


def _difference(ids: dict[str, str], there: dict[str, str]) -> Difference:
    """Files that are not ours stay. Evidence is about other weights or no longer claimed, and the Hub's
    results are made of it."""
    return Difference(
        sorted(ids.keys() - there.keys()),
        sorted(name for name in ids.keys() & there.keys() if ids[name] != there[name]),
        sorted(n for n in there.keys() - ids.keys() if n.startswith("evidence/") or n == EVAL_RESULTS),
    )


def push(publication: Publication, *, propose: bool = False, private: bool = False) -> Published:
    """Publish: create the repository if there is none, make one commit and a tag of what differs, fetch it
    again by its commit into a cache of its own and compare every file; then enter the lock.

    Args:
        propose: open a pull request instead; no tag and no lock entry.
        private: of a repository that is created here.

    Raises:
        RobustzooError: as `look`; no access, someone else's commit came between, or a transfer that broke:
            the same call finishes it.
    """
    repo = publication.repo
    state, difference = look(publication)
    if state is None:
        state = _request(repo, "creating it", "create", private=private)
        difference = _difference(publication.ids, state["files"])
    commit, pull = state["head"], None
    if difference and propose:
        commit, pull = _proposal(publication, state) or _commit(publication, state, difference, True)
    elif difference:
        commit, _ = _commit(publication, state, difference, False)
    _compare(publication, commit)
    tag = None if propose else _tag(repo, commit, state["tags"])
    entry = _lock(publication, commit) if publication.locked and not propose else None
    return Published(f"{PREFIX}{repo}@{commit}", commit, tag, pull, entry)


def _commit(
    publication: Publication, state: dict[str, Any], difference: Difference, propose: bool
) -> tuple[str, str | None]:
    name = publication.folder.config.recipe.name
    with tempfile.TemporaryDirectory() as place:
        sources = dict(publication.files)
        for path, content in publication.made.items():
            sources[path] = Path(place, path)
            sources[path].parent.mkdir(exist_ok=True)
            sources[path].write_bytes(content)
        done = _request(
            publication.repo,
            "uploading",
            "push",
            parent=state["head"],
            add={path: str(sources[path]) for path in (*difference.new, *difference.changed)},
            remove=difference.removed,
            message=f"robustzoo: {name}, weights {publication.folder.sha256[:12]}",
            propose=propose,
        )
    return done["commit"], done["pull"]


def _proposal(publication: Publication, state: dict[str, Any]) -> tuple[str, str] | None:
    """A proposal of before that has the same files."""
    for ref, commit in reversed(state["pulls"].items()):
        there = _request(publication.repo, "reading its proposals", "files", revision=commit)
        if not _difference(publication.ids, there):
            return commit, f"{constants.ENDPOINT}/{publication.repo}/discussions/{ref.rpartition('/')[2]}"
    return None


def _compare(publication: Publication, commit: str) -> None:
    """Fetch the commit as anyone will, and compare every file."""
    with tempfile.TemporaryDirectory() as cache:
        folder = fetch_folder(publication.repo, commit, cache_dir=cache)
        for name, wanted in publication.ids.items():
            path = folder / name
            found = _file_id(path) if path.is_file() else "no file"
            if found != wanted:
                raise RobustzooError(
                    f"{publication.repo} at {commit} gives {found} for {name}, and {wanted} was published: "
                    "do not use this commit. Nothing was tagged or locked; run it again"
                )


def _tag(repo: str, commit: str, tags: dict[str, str]) -> str:
    """The tag of this commit, made if there is none: v1, v2 ..."""
    for name, target in tags.items():
        if target == commit:
            return name
    number = 1
    while f"v{number}" in tags:
        number += 1
    _request(repo, f"tagging commit {commit}", "tag", revision=commit, tag=f"v{number}")
    return f"v{number}"


def _lock(publication: Publication, commit: str) -> Entry:
    """Name the commit in the lock file of this checkout, and keep the card beside the others."""
    opened = publication.folder
    recipe = opened.config.recipe
    size = publication.files["model.safetensors"].stat().st_size
    entry = Entry(recipe.name, recipe, Weights("hub", None, publication.repo, commit, opened.sha256, size))
    text = publish.printed(publication.card, f"{constants.ENDPOINT}/{publication.repo}/resolve/{commit}")
    atomic_files.write_text(publish.card_folder() / f"{recipe.name}.md", text)
    entries.write_lock([entry, *(other for other in published() if other.name != recipe.name)])
    return entry


def _request(repo: str, doing: str, what: str, *, revision: str | None = None, **more: Any) -> Any:
    _say(f"{constants.ENDPOINT}/{repo}: {doing}")
    try:
        return ask(what, repo, revision, **more)
    except RequestFailed as error:
        raise RobustzooError(f"publishing to {repo} stopped, {doing}: {_why(error, repo)}") from error


def _why(error: RequestFailed, repo: str) -> str:
    again = "What is there is nothing or a whole commit; the same command goes on"
    if error.status == 401 or (error.status == 404 and "RepositoryNotFoundError" in error.kinds):
        return f"{constants.ENDPOINT} does not know this account: `hf auth login`, or HF_TOKEN. {again}"
    if error.status == 403:
        return (
            f"this account or its token may not write there; expected a token with write access to "
            f"{repo.partition('/')[0]} (`hf auth login`), or propose it with --create-pr. {again}"
        )
    if error.status in _ANOTHER_HEAD:
        return f"someone changed {repo} meanwhile. Look at it, then run the same command again"
    return f"{error}. {again}"


def _file_id(path: Path) -> str:
    return sha256_file(path) if path.suffix == ".safetensors" else _git_id(path.read_bytes())


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr)
