"""Functions of files of Python that a user names. Running one is for callers whose user asked for that."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from robustzoo.errors import RobustzooError

_FACTORY = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]+)")


def file_and_function(text: str | Path) -> tuple[Path, str] | None:
    """The parts of "FILE.py:FUNCTION"; None for another text."""
    match = _FACTORY.fullmatch(str(text))
    return None if match is None else (Path(match["file"]), match["name"])


def made_by(
    file: Path, name: str, *arguments: Any, source: bytes | None = None, ready: type | tuple[()] = ()
) -> Any:
    """What the function `name` of a file returns. Runs the file.

    arguments: of the function. ready: what a name may mean instead of a function, and is then returned.
    source: what the file holds, where exactly that is to be run: a compiled copy beside it is then not used.

    Raises:
        RobustzooError: no such file or function, or it fails, with the line.
    """
    made = getattr(_module(file) if source is None else _run(file, source), name, None)
    where = f"{file}:{name}"
    if made is None:
        raise RobustzooError(f"{file} has no function {name!r}; it has {_functions(file)}")
    if isinstance(made, ready):
        return made
    if not callable(made):
        raise RobustzooError(
            f"{where} is a {type(made).__name__}; expected a function "
            f"{f'of {len(arguments)} argument' if arguments else 'without arguments'} that returns the "
            f"{'images' if arguments else 'model'}"
        )
    try:
        return made(*arguments)
    except (Exception, SystemExit) as error:  # its sys.exit is not ours, which says what happened
        raise RobustzooError(f"{where} failed: {_told(error, file)}") from error


def _module(file: Path) -> Any:
    """The file as a module, under the name that worker processes can import it by. Raises: RobustzooError."""
    if not os.path.isfile(file):
        raise RobustzooError(f"there is no file {file}; expected FILE.py:FUNCTION")
    folder, stem = str(file.resolve().parent), file.stem
    if not stem.isidentifier():
        raise RobustzooError(f"{file} cannot be imported: {stem!r} is no name of Python; rename the file")
    # Behind everything else: the file's neighbours must not replace installed packages.
    if folder not in sys.path:
        sys.path.append(folder)
    known = sys.modules.get(stem)
    found = getattr(known, "__file__", None) if known else getattr(_spec(stem), "origin", None)
    if found is None or Path(found).resolve() != file.resolve():
        raise RobustzooError(
            f"{file} cannot be imported: {stem!r} already means {found or 'a module of Python'}; rename the "
            "file"
        )
    try:
        return importlib.import_module(stem)
    except (Exception, SystemExit) as error:
        raise RobustzooError(f"{file} cannot be imported: {_told(error, file)}") from error


def _run(file: Path, source: bytes) -> ModuleType:
    """A new module of this source, under the file's name."""
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module  # dataclasses and pickle look their module up
    try:
        exec(compile(source, str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[file.stem]
        raise RobustzooError(f"{file} cannot be run: {_told(error, file)}") from error
    return module


def _spec(stem: str) -> Any:
    importlib.invalidate_caches()
    return importlib.util.find_spec(stem)


def _functions(file: Path) -> str:
    module = sys.modules[file.stem]
    names = [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return ", ".join(names) or "none"


def _told(error: BaseException, file: Path) -> str:
    """The error and the line of the user's own file that it came through."""
    line, at = None, error.__traceback__
    while at is not None:
        if Path(at.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = at.tb_lineno
        at = at.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    where = "" if line is None else f" (line {line})"
    return f"{type(error).__name__}: {error}{where}"
