"""A standard output that holds the command's own result, whatever else prints meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_OUT, _ERR = 1, 2


@contextlib.contextmanager
def own_output(wanted: bool) -> Iterator[None]:
    """Within the block everything that is printed, by a user's model, by a library, or by processes started
    meanwhile, goes to the standard error: a program that reads JSON would stumble over it.

    Args:
        wanted: False changes nothing.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    with contextlib.ExitStack() as restored:
        with contextlib.suppress(OSError):  # a process without a standard output has nothing to keep clean
            kept = os.dup(_OUT)
            restored.callback(os.close, kept)
            restored.callback(os.dup2, kept, _OUT)
            os.dup2(_ERR, _OUT)
        restored.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield
