"""Shared fixtures: no network in any test, and the optional folder of real data and expected results."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import settings

# No test may fail because the machine is slow or busy.
settings.register_profile("robustzoo", deadline=None, max_examples=100 if os.environ.get("CI") else 30)
settings.load_profile("robustzoo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a test run in the background of a script: Ctrl-C, which some tests send, would never arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
_ALLOWED = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Refuse every connection that leaves this machine, so that no test can depend on the network."""
    connect = socket.socket.connect

    def guarded(self, address, *args):
        if isinstance(address, tuple) and not str(address[0]).startswith(_ALLOWED):
            raise ConnectionRefusedError(f"tests may not use the network (tried {address})")
        return connect(self, address, *args)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real images and expected results beside the checkout; skip where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not (folder / "oracle").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("CI runs need the folder ../shared: its oracle tests must not be skipped there")
        pytest.skip("../shared is absent (real images and expected results live there)")
    return folder
