"""A loopback Hub: what huggingface_hub asks for to download, create, upload, commit, tag and propose.

Large files are answered as the Hub does, with a redirect to another address and their SHA-256 as linked ETag;
they are uploaded to that address too, in one piece or in parts. Faults can begin at any request.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hub_repositories import LARGE, FolderRepository, Repository, etag, git_sha1
from hub_uploads import Uploads

WRITER, READER = "hf_writer", "hf_reader"
_NAME = r"[\w.-]+/[\w.-]+?"
_API = re.compile(rf"/api/models/(?P<repo>{_NAME})(?:/(?P<what>[a-z]+)(?:/(?P<rest>.+))?)?")
_RESOLVE = re.compile(rf"/(?P<repo>{_NAME})/resolve/(?P<revision>refs/pr/\d+|[^/]+)/(?P<name>.+)")
_LARGE = re.compile(rf"/(?P<repo>{_NAME})\.git/info/lfs/objects/(?P<what>batch|verify)")


class HubServer:
    """Serves `folder` as one commit of `repo`, and whatever is created on it; a context manager.

    Attributes:
        requests: "METHOD /path" of every request so far.
        tokens: the Authorization header (or None) of every request about the first repository.
        leaked: whether a request to another host, where large files are, carried a token.
        corrupt: names of files served with one byte changed (same size, same promised hash).
        gated: answer as for a repository whose terms were not accepted.
        fault: "stall" never ends an answer, "trickle" sends a byte now and then, "busy" says 429 and to come
            back in an hour, "html" answers with a page, "cut" ends the connection (of an answer in its
            middle), "lost" does what is asked and then ends it; a number is the status of an empty answer.
            With "file " first, for large files alone.
        fault_from: how many requests are still answered well before the fault.
        moved: old name of a repository -> its new one.
        repositories: by name.
    """

    def __init__(self, repo: str, commit: str, folder: Path) -> None:
        self.repo, self.commit, self.folder = repo, commit, folder
        self.repositories: dict[str, FolderRepository] = {repo: FolderRepository(commit, folder)}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.leaked = False
        self.corrupt: set[str] = set()
        self.gated, self.fault, self.fault_from = False, "", 0
        self.moved: dict[str, str] = {}
        self._closed, self._lock = threading.Event(), threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            cut = False

            def do_HEAD(self):
                with contextlib.suppress(ConnectionError):  # the other side has given up
                    server._answer(self)

            do_GET = do_POST = do_PUT = do_HEAD

            def log_message(self, format, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self.storage = f"http://localhost:{self._http.server_port}"  # another host: no token may go there
        self.uploads = Uploads(self)

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()

    def fail(self, fault: str, after: int = 0) -> None:
        """Fail from the request on that comes after `after` more; "" mends it."""
        self.fault, self.fault_from = fault, after

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        address = urlsplit(request.path)
        path = unquote(address.path)
        stored = request.headers["Host"].startswith("localhost")
        with self._lock:
            self.requests.append(f"{request.command} {path}")
            self.leaked |= stored and "Authorization" in request.headers
            if self.repo in path and not stored:
                self.tokens.append(request.headers["Authorization"])
            fault = "" if self.fault_from > 0 else self.fault
            self.fault_from -= 1
        if fault.startswith("file "):
            fault = fault.removeprefix("file ") if stored else ""
        if fault == "cut" and request.command in ("POST", "PUT"):
            request.close_connection = True
            return
        request.cut = fault in ("cut", "lost")
        if fault and not request.cut:
            self._fail(request, fault)
            return
        length = int(request.headers["Content-Length"] or 0)
        body = request.rfile.read(length)
        self._route(request, path, address.query, body, stored)

    def _route(self, request, path: str, query: str, body: bytes, stored: bool) -> None:
        for old, new in self.moved.items():
            if f"/{old}/" in f"{path}/":
                target = path.replace(old, new, 1) + (f"?{query}" if query else "")
                send(request, 307, b"", {"Location": target})
                return
        if stored:
            self._stored(request, path, query, body)
        elif path in ("/api/repos/create", "/api/validate-yaml"):
            self.uploads.create(request, json.loads(body)) if "repos" in path else send(request, 200, b"{}")
        elif match := _LARGE.fullmatch(path) or _API.fullmatch(path) or _RESOLVE.fullmatch(path):
            found = self.repositories.get(match["repo"])
            token = (request.headers["Authorization"] or "").removeprefix("Bearer ")
            if found is None or (found.private and token not in (WRITER, READER)):
                refuse(request, 404 if token else 401, "RepoNotFound")
            elif self.gated and (match.re is not _API or match["what"] is not None):
                refuse(request, 403, "GatedRepo")
            elif match.re is _RESOLVE:
                self._resolve(request, match["repo"], found, match["revision"], match["name"])
            elif request.command == "GET":
                self._tell(request, match["repo"], found, match["what"], match["rest"])
            else:
                rest = match.groupdict().get("rest") or ""
                self.uploads.take(request, match["repo"], match["what"], rest, query, body)
        else:
            refuse(request, 404, "RepoNotFound")

    def _fail(self, request: BaseHTTPRequestHandler, fault: str) -> None:
        if fault.isdigit():
            request.close_connection = True  # the body of the request is not read
            send(request, int(fault), b"{}")
        elif fault == "busy":
            request.close_connection = True
            send(request, 429, b"{}", {"Retry-After": "3600"})
        elif fault == "html":
            send(request, 200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        else:
            request.send_response(200)
            request.send_header("Content-Length", "1000000")
            request.end_headers()
            while not self._closed.wait(0.05) and self.fault:
                if fault == "trickle":
                    try:
                        request.wfile.write(b" ")
                    except OSError:  # the other side has given up
                        return

    def _stored(self, request, path: str, query: str, body: bytes) -> None:
        if not path.startswith("/blobs/"):
            self.uploads.store(request, path, query, body)
            return
        owner, name, commit, file = path.removeprefix("/blobs/").split("/", 3)
        self._send_file(request, file, self.repositories[f"{owner}/{name}"].files(commit)[file], {})

    def _resolve(self, request, repo: str, found: FolderRepository, revision: str, name: str) -> None:
        commit = found.resolve(revision)
        files = {} if commit is None else found.files(commit)
        if commit is None:
            refuse(request, 404, "RevisionNotFound")
        elif name not in files:
            refuse(request, 404, "EntryNotFound")
        else:
            data = files[name]
            headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(name, data)}"'}
            if name.endswith(LARGE):
                headers |= {
                    "X-Linked-ETag": f'"{etag(name, data)}"',
                    "X-Linked-Size": str(len(data)),
                    "Location": f"{self.storage}/blobs/{repo}/{commit}/{name}",
                }
                send(request, 302, b"", headers)
            else:
                self._send_file(request, name, data, headers)

    def _send_file(self, request, name: str, data: bytes, headers: dict[str, str]) -> None:
        if name in self.corrupt:
            data = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers["Range"] or "")
        if wanted is None:
            send(request, 200, data, headers | {"Accept-Ranges": "bytes"})
            return
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        send(request, 206, data[first : last + 1], headers | where)

    def _tell(self, request, repo: str, found: FolderRepository, what: str | None, rest: str | None) -> None:
        if what == "refs":
            kinds = {
                "branches": [(name, f"refs/heads/{name}", at) for name, at in found.heads.items()],
                "tags": [(name, f"refs/tags/{name}", at) for name, at in found.tags.items()],
                "pullRequests": [(name, f"refs/{name}", at) for name, at in found.pulls.items()],
                "converts": [],
            }
            keys = ("name", "ref", "targetCommit")
            told = {kind: [dict(zip(keys, row, strict=True)) for row in rows] for kind, rows in kinds.items()}
            send(request, 200, json.dumps(told).encode())
            return
        commit = found.resolve(rest or "main")
        if commit is None:
            refuse(request, 404, "RevisionNotFound")
        elif what == "tree":
            rows = [_row(name, data) for name, data in found.files(commit).items()]
            send(request, 200, json.dumps(rows).encode())
        else:  # "revision", or nothing for the default branch
            siblings = [{"rfilename": name} for name in found.files(commit)]
            document = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}
            send(request, 200, json.dumps(document | {"private": found.private}).encode())


def _row(name: str, data: bytes) -> dict:
    row = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
    if name.endswith(LARGE):
        row["lfs"] = {"oid": etag(name, data), "size": len(data), "pointerSize": 134}
    return row


def refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str = "") -> None:
    text = message or code
    send(
        request, status, json.dumps({"error": text}).encode(), {"X-Error-Code": code, "X-Error-Message": text}
    )


def send(request, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    if request.cut:
        request.close_connection = True
        if request.command != "GET" or not body:
            return
    request.send_response(status)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
    for key, value in headers.items():
        request.send_header(key, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[: len(body) // 2] if request.cut else body)


__all__ = ["READER", "WRITER", "HubServer", "Repository", "refuse", "send"]
