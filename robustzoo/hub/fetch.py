"""A pinned model repository of the Hub -> a folder of its cache, through the huggingface_hub client.

The client's cache, its environment variables (HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN ...) and its
arguments pass straight through; a commit that is cached costs no request. Requests are made by a process of
their own, which gives up when for ROBUSTZOO_HUB_TIMEOUT seconds (default 60) there is no progress.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.hub.references import PREFIX, is_commit, split_reference

FILES = ("model.safetensors", "config.json", "README.md")
PATTERNS = [*FILES, "evidence/*", ".eval_results/*", "open_clip_config.json"]
_SHA256 = re.compile(r"[0-9a-f]{64}")
LIMIT = "ROBUSTZOO_HUB_TIMEOUT"
_SECONDS = 60.0


class OfflineMiss(RobustzooError, FileNotFoundError):
    """A pinned folder is not in the cache and the Hub is out of reach; names the command that fetches it.

    A class of its own for who has another way to the model where there is no network.
    """


class RequestFailed(Exception):
    """What came of a request to the Hub. kinds: names of the client's exception and its bases, nearest first;
    cause: what was behind it; status: of HTTP, where an answer came."""

    def __init__(self, kinds: list[str], message: str, cause: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.kinds, self.cause, self.status = kinds, cause or message, status


def fetch_folder(
    repo: str,
    commit: str,
    *,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """The folder of one commit of a model repository, downloaded if it is not in the cache.

    Nothing is checked here but presence: compare hashes before use.

    Args:
        repo: "OWNER/REPO". commit: 40 hex digits.
        cache_dir, local_files_only, token: as in huggingface_hub.

    Raises:
        OfflineMiss: not cached, and offline (or the Hub does not answer).
        RobustzooError: no such repository or commit, no access, or a broken transfer.
    """
    try:
        if (found := _whole_snapshot(repo, commit, cache_dir)) is not None:
            return found
    except HFValidationError as error:
        raise RobustzooError(f"{repo[:80]} is no Hub repository: {error}") from error
    except ValueError as error:  # of a path that can be none
        raise RobustzooError(f"the cache {str(cache_dir)[:80]!r} cannot be read: {error}") from error
    offline = "local_files_only is set" if local_files_only else None
    if constants.HF_HUB_OFFLINE:
        offline = offline or "HF_HUB_OFFLINE is set"
    if offline is not None:
        return _cached_model(repo, commit, cache_dir) or _miss(repo, commit, cache_dir, offline)
    with _alone(repo, commit, cache_dir) as waited:
        if waited and (found := _whole_snapshot(repo, commit, cache_dir)) is not None:
            return found
        if not are_progress_bars_disabled():
            print(
                f"Fetching {repo} at {commit[:12]} from {constants.ENDPOINT} (without a network the client "
                "tries again for about 20 s; HF_HUB_OFFLINE=1 fails at once)",
                file=sys.stderr,
            )
        try:
            return Path(ask("snapshot", repo, commit, cache_dir=cache_dir, token=token))
        except RequestFailed as error:
            failed = error
    if {"LocalEntryNotFoundError", "Unheard"} & {*failed.kinds}:
        reason = f"{constants.ENDPOINT} cannot be reached ({failed.cause.strip()[:300]})"
        return _cached_model(repo, commit, cache_dir) or _miss(repo, commit, cache_dir, reason, failed)
    if "RevisionNotFoundError" in failed.kinds:
        raise RobustzooError(
            f"{repo} on {constants.ENDPOINT} has no commit {commit}; update robustzoo if a registry name "
            f"pins it, or name a commit that it has: git ls-remote {constants.ENDPOINT}/{repo}"
        ) from failed
    if "GatedRepoError" in failed.kinds:
        raise RobustzooError(
            f"{repo} is gated: ask for access on {constants.ENDPOINT}/{repo}, then `hf auth login`"
        ) from failed
    if "RepositoryNotFoundError" in failed.kinds:
        raise RobustzooError(
            f"{constants.ENDPOINT} has no repository {repo}, or this account may not see it; "
            "check the spelling, or give access with `hf auth login` or HF_TOKEN"
        ) from failed
    raise RobustzooError(
        f"fetching {repo} at {commit} from {constants.ENDPOINT} failed: {failed}\n"
        f"Next: {download_command(repo, commit, cache_dir)}"
    ) from failed


def _whole_snapshot(repo: str, commit: str, cache_dir: str | Path | None) -> Path | None:
    """The folder of a commit if all of it is cached, without a request."""
    try:
        folder = Path(
            snapshot_download(
                repo, revision=commit, cache_dir=cache_dir, allow_patterns=PATTERNS, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    return folder if all((folder / name).is_file() for name in FILES) else None


@contextlib.contextmanager
def _alone(repo: str, commit: str, cache_dir: str | Path | None) -> Iterator[bool]:
    """Hold the download of a commit into a cache; the value says whether another process had it before.

    The client's own locks would keep a second process waiting where nothing can tell that from a Hub which
    does not answer.
    """
    place = Path(cache_dir or constants.HF_HUB_CACHE) / ".locks" / "robustzoo"
    waited, held = False, None
    while held is None:
        try:
            held = atomic_files.hold(place / f"{repo.replace('/', '--')}@{commit}")
            break  # None on Windows
        except atomic_files.FolderInUse:
            if not waited and not are_progress_bars_disabled():
                print(f"another process is fetching {repo}; waiting for it", file=sys.stderr)
            waited = True
            time.sleep(0.1)
        except OSError:
            break  # a cache that cannot be written: the client says so
    try:
        yield waited
    finally:
        if held is not None:
            held.close()


def pin(reference: str, *, token: str | bool | None = None, local_files_only: bool = False) -> str:
    """The reference, "hf-hub:OWNER/REPO" and perhaps "@REVISION", with the commit that it means now.

    Raises:
        RobustzooError: no such form, or the Hub does not have it or cannot be asked.
    """
    repo, revision = split_reference(reference)
    if is_commit(revision):
        return reference
    try:
        if constants.HF_HUB_OFFLINE or local_files_only:
            raise RequestFailed([], f"{'local_files_only' if local_files_only else 'HF_HUB_OFFLINE'} is set")
        commit = ask("commit", repo, revision or None, token=token)
    except RequestFailed as error:
        if {"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"} & {*error.kinds}:
            raise RobustzooError(
                f"{constants.ENDPOINT} does not give {reference}: {_first_line(error)}. Check the spelling, "
                "or give access with `hf auth login`"
            ) from error
        raise RobustzooError(
            f"{reference} names no commit, and {constants.ENDPOINT} cannot be asked which it means "
            f"({_first_line(error)}); name one that is cached: {PREFIX}{repo}@COMMIT"
        ) from error
    print(f"{reference} is commit {commit} today; the result is named by it", file=sys.stderr)
    return f"{PREFIX}{repo}@{commit}"


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def ask(
    what: str,
    repo: str,
    revision: str | None,
    *,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    patterns: Sequence[str] = PATTERNS,
    **more: Any,
) -> Any:
    """What the Hub answers, in a process of its own: see `robustzoo.hub.client`.

    Args:
        what: "snapshot" fetches files of a commit and gives their folder; "commit" gives the one that a
            branch or tag means now; the others are those of `robustzoo.hub.push`.
        patterns: which files.
        more: arguments of those.

    Raises:
        RequestFailed: anything else. RobustzooError: the limit of the environment is no number.
    """
    limit = _limit()
    asked = {
        "what": what,
        "repo": repo,
        "revision": revision,
        "cache_dir": str(cache_dir or constants.HF_HUB_CACHE),
        "token": token,
        "patterns": list(patterns),
        "limit": limit,
        **more,
    }
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_ENDPOINT": constants.ENDPOINT}
    if are_progress_bars_disabled():
        environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "robustzoo.hub.client"],
        input=json.dumps(asked).encode(),
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise RequestFailed([], f"the process that asks ended with status {done.returncode}") from error
    if "value" in answer:
        return answer["value"]
    if {"Stalled", "Unheard"} & {*answer["error"]}:
        raise RequestFailed(
            answer["error"],
            f"{answer['message']}, and the limit is {limit:g} s without progress. What has arrived is kept: "
            f"try again later, or with a longer limit: {LIMIT}=SECONDS in the environment",
        )
    message, kinds = answer["message"].strip(), answer["error"]
    if "TransportError" in kinds:
        message = f"the connection to {constants.ENDPOINT} broke ({answer['cause'].strip()[:300]})"
    elif not {"OSError", "HTTPError"} & {*kinds}:  # a login page, for example, where JSON should be
        message = f"{constants.ENDPOINT} does not answer as a Hub does ({answer['cause'].strip()[:300]})"
    raise RequestFailed(kinds, message, answer["cause"], answer["status"])


def _limit() -> float:
    text = os.environ.get(LIMIT) or str(_SECONDS)
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise RobustzooError(f"the environment says {LIMIT}={text}; expected a number of seconds above 0")
    return limit


def download_command(
    repo: str, commit: str, cache_dir: str | Path | None = None, *, force: bool = False
) -> str:
    """The command line that puts this commit into the cache; `force` replaces files that are there."""
    cache = f" --cache-dir {shlex.quote(str(cache_dir))}" if cache_dir is not None else ""
    return f"hf download {repo} --revision {commit}{cache}{' --force-download' if force else ''}"


def promised_sha256(path: Path) -> str | None:
    """SHA-256 that the Hub announced for a large file of the cache, None where it is not known.

    The cache names the blob of such a file by its hash, and the snapshot links to it.
    """
    name = path.readlink().name if path.is_symlink() else ""
    return name if _SHA256.fullmatch(name) else None


def _cached_model(repo: str, commit: str, cache_dir: str | Path | None) -> Path | None:
    """The snapshot folder if it holds weights and configuration, though perhaps no card or evidence."""
    found = [try_to_load_from_cache(repo, name, cache_dir=cache_dir, revision=commit) for name in FILES[:2]]
    return Path(found[0]).parent if all(isinstance(path, str) for path in found) else None


def _miss(
    repo: str, commit: str, cache_dir: str | Path | None, reason: str, error: Exception | None = None
) -> NoReturn:
    raise OfflineMiss(
        f"{repo} at {commit} is not in the cache {cache_dir or constants.HF_HUB_CACHE}, and {reason}.\n"
        f"Next: where there is a network, run\n  {download_command(repo, commit, cache_dir)}\n"
        "and bring that cache here (HF_HOME says where the cache is). If this machine has a network, call "
        "again without local_files_only and with HF_HUB_OFFLINE unset."
    ) from error
