"""A request to the Hub in a process of its own, which ends when for too long nothing arrives.

`python -m robustzoo.hub.client` reads what is asked for as JSON on its standard input, and answers so on
its standard output. The client of the Hub has no limit for a whole transfer: a server that sends a byte now
and then, or asks to wait for an hour, would hold it for ever, and threads cannot be ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from typing import Any, NoReturn

_ENOUGH = 2**16  # bytes within the limit, or a whole file, are progress
_GONE_ON = threading.Lock()  # held by who answers: the answer is one


class _Watch:
    """Ends the process with an answer once no progress has been made for `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self.limit, self._last, self._bytes = limit, time.monotonic(), 0
        self._sleep, self.heard = time.sleep, False

    def start(self) -> None:
        self.progress()
        for owner in (socket.socket, ssl.SSLSocket):
            for name in ("recv", "recv_into"):
                setattr(owner, name, self._counted(getattr(owner, name), heard=True))
            for name in ("send", "sendall"):
                setattr(owner, name, self._counted(getattr(owner, name)))
        time.sleep = self._wait
        threading.Thread(target=self._look, daemon=True).start()

    def progress(self) -> None:
        self._last, self._bytes = time.monotonic(), 0

    def _counted(self, move: Any, heard: bool = False) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            got = move(*arguments, **options)
            self.heard = self.heard or heard
            # sendall takes (socket, bytes) and answers nothing
            self._bytes += got if isinstance(got, int) else len(arguments[1] if got is None else got)
            if self._bytes >= _ENOUGH:
                self.progress()
            return got

        return counted

    def _wait(self, seconds: float) -> None:
        if seconds > self.limit:
            _answer({"error": ["Stalled"], "message": f"it asks to wait for {seconds:.0f} s"})
        self._sleep(seconds)

    def _look(self) -> None:
        while time.monotonic() - self._last < self.limit:
            self._sleep(min(self.limit / 4, 0.5))
        kind, said = ("Stalled", "too little arrived") if self.heard else ("Unheard", "it did not answer")
        _answer({"error": [kind], "message": f"{said} for {self.limit:g} s"})


def _answer(document: dict[str, Any]) -> NoReturn:
    """Write the answer and end the process, whatever its threads do."""
    _GONE_ON.acquire()
    os.write(_OUT, json.dumps(document).encode())
    os._exit(0)


def perform(asked: dict[str, Any], watch: _Watch | None = None) -> Any:
    """What is asked for, done by the client of the Hub; the value is JSON.

    Args:
        asked: "what" with its arguments: see `robustzoo.hub.fetch.ask` and `robustzoo.hub.push`.
        watch: is told of progress.
    """
    from huggingface_hub import HfApi, constants

    # One way up for every server, which sends through sockets that the watch sees.
    constants.HF_HUB_DISABLE_XET = constants.HF_HUB_DISABLE_XET or asked["what"] == "push"
    api, repo = HfApi(endpoint=constants.ENDPOINT, token=asked["token"]), asked["repo"]
    if asked["what"] == "commit":
        return api.model_info(repo, revision=asked["revision"]).sha
    if asked["what"] == "state":
        return _state(api, repo)
    if asked["what"] == "files":
        return _files(api, repo, asked["revision"])
    if asked["what"] == "create":
        api.create_repo(repo, private=asked["private"], exist_ok=True)
        return _state(api, repo)
    if asked["what"] == "push":
        return _push(api, asked)
    if asked["what"] == "tag":
        return api.create_tag(repo, tag=asked["tag"], revision=asked["revision"])
    return _snapshot(asked, watch)


def _state(api: Any, repo: str) -> dict[str, Any] | None:
    """The head of a repository with its files, and its tags and proposals by name; None where there is no
    such repository, or none that this account may see."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        head = api.model_info(repo).sha
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        return None
    refs = api.list_repo_refs(repo, include_pull_requests=True)
    return {
        "head": head,
        "files": _files(api, repo, head),
        "tags": {ref.name: ref.target_commit for ref in refs.tags},
        "pulls": {ref.ref: ref.target_commit for ref in refs.pull_requests or []},
    }


def _files(api: Any, repo: str, revision: str) -> dict[str, str]:
    """Path -> SHA-256 of a large file (64 digits), git's hash of another one (40 digits)."""
    found = api.list_repo_tree(repo, recursive=True, revision=revision)
    rows = [row for row in found if hasattr(row, "blob_id")]
    return {row.path: row.lfs.sha256 if row.lfs else row.blob_id for row in rows}


def _push(api: Any, asked: dict[str, Any]) -> dict[str, str | None]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    done = api.create_commit(
        asked["repo"],
        operations=[
            *(CommitOperationDelete(path) for path in asked["remove"]),
            *(CommitOperationAdd(path, source) for path, source in asked["add"].items()),
        ],
        commit_message=asked["message"],
        parent_commit=asked["parent"],
        create_pr=asked["propose"],
    )
    return {"commit": done.oid, "pull": done.pr_url}


def _snapshot(asked: dict[str, Any], watch: _Watch | None) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        """Tells the watch of files, and of parts of large ones."""

        def update(self, n: float | None = 1) -> Any:
            if watch is not None:
                watch.progress()
            return super().update(n)

    return snapshot_download(
        asked["repo"],
        revision=asked["revision"],
        cache_dir=asked["cache_dir"],
        token=asked["token"],
        allow_patterns=asked["patterns"],
        tqdm_class=Bar,
    )


def answer_to(asked: dict[str, Any], watch: _Watch | None = None) -> dict[str, Any]:
    """{"value": ...}, or what went wrong: of the client, the server or the disk."""
    try:
        return {"value": perform(asked, watch)}
    except Exception as error:
        cause = error.__cause__ or error
        return {
            "error": [kind.__name__ for kind in type(error).__mro__],
            "message": str(error),
            "cause": f"{type(cause).__name__}: {cause}",
            "status": getattr(getattr(error, "response", None), "status_code", None),
        }


def main() -> None:
    """Do what the standard input asks for."""
    import huggingface_hub.utils  # noqa: F401 - slow on a busy machine, and no fault of the Hub
    from huggingface_hub import HfApi, snapshot_download  # noqa: F401

    asked = json.loads(sys.stdin.buffer.read())
    watch = _Watch(asked["limit"])
    watch.start()
    _answer(answer_to(asked, watch))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked is interrupted, and ends this process
    _OUT = os.dup(1)  # whatever a library prints goes elsewhere
    os.dup2(2, 1)
    main()
