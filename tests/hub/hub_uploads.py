"""The writing side of the loopback Hub: repositories, large files, commits, tags."""

from __future__ import annotations

import hashlib
import json
from urllib.parse import parse_qs

import hub_server
from hub_repositories import LARGE, Repository, git_sha1


class Uploads:
    """Answers the requests that change something, for who holds the token of a writer.

    Attributes:
        large: SHA-256 -> what was uploaded whole.
        part_size: bytes of a part; larger files come in parts.
        race: called once before the next commit, as someone else's would come.
    """

    def __init__(self, server) -> None:
        self.server = server
        self.large: dict[str, bytes] = {}
        self.part_size = 10**7
        self.race = None
        self._parts: dict[str, dict[int, bytes]] = {}

    def _may(self, request) -> bool:
        token = (request.headers["Authorization"] or "").removeprefix("Bearer ")
        if token == hub_server.WRITER:
            return True
        known = token == hub_server.READER
        words = "You don't have the rights to write here" if known else "Invalid username or password."
        hub_server.refuse(request, 403 if known else 401, "", words)
        return False

    def create(self, request, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if not self._may(request):
            return
        answer = json.dumps({"url": f"{self.server.endpoint}/{name}", "error": "it exists"}).encode()
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        if name in self.server.repositories:
            hub_server.send(request, 409, answer)
        else:
            self.server.repositories[name] = Repository(private)
            hub_server.send(request, 200, answer)

    def take(self, request, repo: str, what: str, rest: str, query: str, body: bytes) -> None:
        if not self._may(request):
            return
        found = self.server.repositories[repo]
        if what == "preupload":
            files = found.files(found.commit)
            rows = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                    "oid": _oid(file["path"], files.get(file["path"])),
                }
                for file in json.loads(body)["files"]
            ]
            hub_server.send(request, 200, json.dumps({"files": rows}).encode())
        elif what == "batch":
            rows = [self._action(repo, item) for item in json.loads(body)["objects"]]
            hub_server.send(request, 200, json.dumps({"objects": rows, "transfer": "basic"}).encode())
        elif what == "verify":
            good = json.loads(body)["oid"] in self.large
            hub_server.send(request, 200 if good else 404, b"{}")
        elif what == "commit":
            self._commit(request, repo, found, [json.loads(line) for line in body.splitlines()], query)
        elif what == "tag":
            tag = json.loads(body)["tag"]
            if tag in found.tags:
                hub_server.refuse(request, 409, "", "the tag exists")
            else:
                found.tags[tag] = found.resolve(rest)
                hub_server.send(request, 200, b"{}")

    def _action(self, repo: str, item: dict) -> dict:
        oid, size = item["oid"], item["size"]
        if oid in self.large:
            return {"oid": oid, "size": size}
        place = f"{self.server.storage}/uploads/{oid}"
        upload: dict = {"href": place}
        if size > self.part_size:
            parts = -(-size // self.part_size)
            header = {str(number): f"{place}?part={number}" for number in range(1, parts + 1)}
            upload = {"href": f"{place}/complete", "header": {"chunk_size": str(self.part_size), **header}}
        verify = {"href": f"{self.server.endpoint}/{repo}.git/info/lfs/objects/verify"}
        return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": verify}}

    def store(self, request, path: str, query: str, body: bytes) -> None:
        """What arrives at the address of large files, which asks for no token."""
        oid = path.split("/")[2]
        part = parse_qs(query).get("part")
        if part is not None:
            self._parts.setdefault(oid, {})[int(part[0])] = body
            hub_server.send(request, 200, b"", {"ETag": f'"{part[0]}"'})
            return
        if path.endswith("/complete"):
            parts = self._parts.pop(oid)
            body = b"".join(parts[number] for number in sorted(parts))
        if hashlib.sha256(body).hexdigest() != oid:
            hub_server.send(request, 400, b"{}")
            return
        self.large[oid] = body
        hub_server.send(request, 200, b"{}")

    def _commit(self, request, repo: str, found: Repository, lines: list[dict], query: str) -> None:
        if self.race is not None:
            race, self.race = self.race, None
            race(found)
        propose = "create_pr" in parse_qs(query)
        status, said = found.change(lines, self.large, propose)
        if status != 200:
            hub_server.refuse(request, status, "", said)
            return
        place = f"{self.server.endpoint}/{repo}"
        answer = {"commitUrl": f"{place}/commit/{said}", "commitOid": said, "success": True}
        if propose:
            answer["pullRequestUrl"] = f"{place}/discussions/{len(found.pulls)}"
        hub_server.send(request, 200, json.dumps(answer).encode())


def _oid(name: str, data: bytes | None) -> str | None:
    """The git hash of what the repository has of that name; of a large file that of its pointer."""
    if data is None:
        return None
    if not name.endswith(LARGE):
        return git_sha1(data)
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n"
    return git_sha1(pointer.encode())
