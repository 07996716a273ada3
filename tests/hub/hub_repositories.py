"""What a loopback Hub stores: repositories with commits, tags and proposals."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

LARGE = (".safetensors",)


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else git_sha1(data)


class FolderRepository:
    """The files of a folder, read whenever they are asked for, as the one commit of a repository."""

    private = False

    def __init__(self, commit: str, folder: Path) -> None:
        self.commit, self.folder = commit, folder
        self.tags = {"v1": commit}
        self.pulls: dict[str, str] = {}

    @property
    def heads(self) -> dict[str, str]:
        return {"main": self.commit}

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch, tag, proposal or commit means; None for no such."""
        known = {**self.heads, **self.tags, **{f"refs/{name}": at for name, at in self.pulls.items()}}
        return known.get(revision, revision if self.has(revision) else None)

    def has(self, commit: str) -> bool:
        return commit == self.commit

    def files(self, commit: str) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in sorted(found)}


class Repository(FolderRepository):
    """A repository that was created, and is committed to; it begins as the Hub's do, with .gitattributes."""

    def __init__(self, private: bool = False) -> None:
        self.private = private
        self.commits: dict[str, dict[str, bytes]] = {}
        self.tags, self.pulls = {}, {}
        self.messages: list[str] = []
        self.commit = self._add({".gitattributes": b"*.safetensors filter=lfs\n"})

    def has(self, commit: str) -> bool:
        return commit in self.commits

    def files(self, commit: str) -> dict[str, bytes]:
        return self.commits[commit]

    def change(self, lines: list[dict], large: dict[str, bytes], propose: bool) -> tuple[int, str]:
        """A commit as the client sends it -> (status, commit or what is wrong)."""
        header = lines[0]["value"]
        if header.get("parentCommit", self.commit) != self.commit:
            return 412, "The expected parent commit is not the head"
        files = dict(self.commits[self.commit])
        for line in lines[1:]:
            key, value = line["key"], line["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                if value["oid"] not in large:
                    return 400, f"{value['path']} was not uploaded"
                files[value["path"]] = large[value["oid"]]
            elif value["path"] in files:
                del files[value["path"]]
            else:
                return 404, "A file with this name doesn't exist"
        commit = self._add(files)
        self.messages.append(header["summary"])
        if propose:
            self.pulls[f"pr/{len(self.pulls) + 1}"] = commit
        else:
            self.commit = commit
        return 200, commit

    def _add(self, files: dict[str, bytes]) -> str:
        commit = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[commit] = files
        return commit
