"""The tree that the Hub client leaves in its cache for one commit, made by hand."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

NAME = "vit_micro2.digits_linf.trades_trh"
REPO = "someone/vit_micro2.digits_linf.trades_trh"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_cache(cache: Path, published: Path, names: list[str] | None = None) -> Path:
    """Put files of `published` (default: all) into `cache` as COMMIT of REPO; returns the snapshot folder."""
    root = cache / f"models--{REPO.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for source in sorted(path for path in published.rglob("*") if path.is_file()):
        name = source.relative_to(published).as_posix()
        if names is not None and name not in names:
            continue
        data = source.read_bytes()
        large = source.suffix == ".safetensors"
        blob = (hashlib.sha256(data) if large else hashlib.sha1(b"blob %d\0" % len(data) + data)).hexdigest()
        shutil.copy(source, root / "blobs" / blob)
        link = snapshot / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path(*[".."] * (2 + name.count("/")), "blobs", blob))
    return snapshot
