"""A request to the Hub in a process of its own, which ends when for too long nothing arrives.

`python -m robustzoo.hub.download` reads what is asked for as JSON on its standard input, and answers so on
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
                setattr(owner, name, self._counted(getattr(owner, name)))
        time.sleep = self._wait
        threading.Thread(target=self._look, daemon=True).start()

    def progress(self) -> None:
        self._last, self._bytes = time.monotonic(), 0

    def _counted(self, receive: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            got = receive(*arguments, **options)
            self.heard = True
            self._bytes += got if isinstance(got, int) else len(got)
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


def _ask(asked: dict[str, Any], watch: _Watch) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import tqdm

    if asked["what"] == "commit":
        return HfApi().model_info(asked["repo"], revision=asked["revision"]).sha

    class Bar(tqdm):
        """Tells the watch of files, and of parts of large ones."""

        def update(self, n: float | None = 1) -> Any:
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


def main() -> None:
    """Do what the standard input asks for."""
    import huggingface_hub.utils  # noqa: F401 - slow on a busy machine, and no fault of the Hub
    from huggingface_hub import HfApi, snapshot_download  # noqa: F401

    asked = json.loads(sys.stdin.buffer.read())
    watch = _Watch(asked["limit"])
    watch.start()
    try:
        _answer({"value": _ask(asked, watch)})
    except Exception as error:  # of the client, the server or the disk: the asking process says it in words
        kinds = [kind.__name__ for kind in type(error).__mro__]
        cause = error.__cause__ or error
        told = {"error": kinds, "message": str(error), "cause": f"{type(cause).__name__}: {cause}"}
        _answer({**told, "errno": getattr(error, "errno", None)})


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked is interrupted, and ends this process
    _OUT = os.dup(1)  # whatever a library prints goes elsewhere
    os.dup2(2, 1)
    main()
