"""A loopback Hub: the few routes that huggingface_hub needs to download one commit of a model repository.

Large files are answered as the Hub does, with a redirect to another address and their SHA-256 as linked ETag.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors",)


class HubServer:
    """Serves the files of `folder` as one commit of `repo`; a context manager.

    Attributes:
        requests: "METHOD /path" of every request so far.
        tokens: the Authorization header (or None) of every request about the repository.
        leaked: whether a request for a blob, at another host, carried a token.
        corrupt: names of files served with one byte changed (same size, same promised hash).
        gated: answer as for a repository whose terms were not accepted.
        fault: "stall" never ends an answer, "trickle" sends a byte now and then, "busy" says 429 and to come
            back in an hour, "html" answers with a page; with "file " first, for large files alone.
    """

    def __init__(self, repo: str, commit: str, folder: Path) -> None:
        self.repo, self.commit, self.folder = repo, commit, folder
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.leaked = False
        self.corrupt: set[str] = set()
        self.gated, self.fault = False, ""
        self._closed = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                server._answer(self)

            def do_GET(self):
                server._answer(self)

            def log_message(self, format, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self.storage = f"http://localhost:{self._http.server_port}"  # another host: no token may go there

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.requests.append(f"{request.command} {path}")
        if path.startswith("/blobs/"):
            self.leaked |= "Authorization" in request.headers
        elif self.repo in path:
            self.tokens.append(request.headers["Authorization"])
        resolve = f"/{self.repo}/resolve/"
        if self.fault and (path.startswith("/blobs/") or not self.fault.startswith("file ")):
            self._fail(request, self.fault.removeprefix("file "))
        elif path.startswith("/blobs/"):
            self._send_file(request, path.removeprefix("/blobs/"), {})
        elif path == f"/api/models/{self.repo}":
            self._listing(request, "revision", self.commit)  # of the default branch
        elif not path.startswith((resolve, f"/api/models/{self.repo}/")):
            _refuse(request, 404, "RepoNotFound")
        elif self.gated:
            _refuse(request, 403, "GatedRepo")
        elif path.startswith(resolve):
            commit, _, name = path.removeprefix(resolve).partition("/")
            self._resolve(request, commit, name)
        else:
            self._listing(request, *path.removeprefix(f"/api/models/{self.repo}/").split("/", 1))

    def _fail(self, request: BaseHTTPRequestHandler, fault: str) -> None:
        if fault == "busy":
            _send(request, 429, b"{}", {"Retry-After": "3600"})
        elif fault == "html":
            _send(request, 200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        else:
            request.send_response(200)
            request.send_header("Content-Length", "1000000")
            request.end_headers()
            while not self._closed.wait(0.05):
                if fault == "trickle":
                    try:
                        request.wfile.write(b" ")
                    except OSError:  # the other side has given up
                        return

    def _resolve(self, request: BaseHTTPRequestHandler, commit: str, name: str) -> None:
        if commit not in (self.commit, "main"):
            _refuse(request, 404, "RevisionNotFound")
        elif not (self.folder / name).is_file():
            _refuse(request, 404, "EntryNotFound")
        else:
            headers = {"X-Repo-Commit": self.commit, "ETag": f'"{self._etag(name)}"'}
            if name.endswith(LARGE):
                headers |= {
                    "X-Linked-ETag": f'"{self._etag(name)}"',
                    "X-Linked-Size": str((self.folder / name).stat().st_size),
                    "Location": f"{self.storage}/blobs/{name}",
                }
                _send(request, 302, b"", headers)
            else:
                self._send_file(request, name, headers)

    def _send_file(self, request: BaseHTTPRequestHandler, name: str, headers: dict[str, str]) -> None:
        data = bytearray((self.folder / name).read_bytes())
        if name in self.corrupt:
            data[-100] ^= 1
        _send(request, 200, bytes(data), headers)

    def _listing(self, request: BaseHTTPRequestHandler, kind: str, commit: str) -> None:
        names = sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())
        if commit not in (self.commit, "main"):
            _refuse(request, 404, "RevisionNotFound")
        elif kind == "tree":
            _send(request, 200, json.dumps([self._row(name) for name in names]).encode(), {})
        else:  # "revision", asked for by older clients
            siblings = [{"rfilename": name} for name in names]
            document = {"id": self.repo, "modelId": self.repo, "sha": self.commit, "siblings": siblings}
            _send(request, 200, json.dumps(document).encode(), {})

    def _row(self, name: str) -> dict:
        size = (self.folder / name).stat().st_size
        row = {"type": "file", "path": name, "size": size, "oid": _git_sha1(self.folder / name)}
        if name.endswith(LARGE):
            row["lfs"] = {"oid": self._etag(name), "size": size, "pointerSize": 134}
        return row

    def _etag(self, name: str) -> str:
        path = self.folder / name
        return hashlib.sha256(path.read_bytes()).hexdigest() if name.endswith(LARGE) else _git_sha1(path)


def _git_sha1(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
    _send(request, status, b"{}", {"X-Error-Code": code})


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
    request.send_response(status)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | headers
    for key, value in headers.items():
        request.send_header(key, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
