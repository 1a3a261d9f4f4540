"""Code of the user's own that a suite names: where it is, and how any process finds it again.

A reference is ``path/to/file.py:NAME`` or ``package.module:NAME``; the name may be left out where
the file has exactly one. The process that plans finds the file; the ranks are told of it, so that
nothing depends on the folder, or the path of imports, that they happen to have.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec

from bench.errors import BenchError, in_words
from bench.plan.sources import INSTALLED, OURS, source_digest

WORD = r"[^\W\d]\w*"
REFERENCE = re.compile(rf"(?P<file>[^:\0]+\.py|{WORD}(\.{WORD})+)(:(?P<name>{WORD})?)?")
"""``path/to/file.py:NAME``, ``package.module:NAME``, each without the name too."""
FORM = "path/to/file.py:NAME or package.module:NAME"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the user's own."""

    module: str
    """Name that it is imported by."""
    file: str
    root: str
    """Folder in which its imports are looked for."""
    is_loose: bool
    """Whether it is imported from its file, being in no package."""
    digest: str
    """Of its source, and of what it imports from beside it."""


class ReachedError(BaseException):
    """A script that was to be imported has come to where it would measure something itself.

    What stands above that line is all that is needed of it. Not an ``Exception``, so that no
    handler of the script swallows it.
    """


_codes: dict[str, Code] = {}
"""What this process knows of each reference."""
_loading: list[str] = []
"""Modules whose code runs for the first time right now."""


def is_own(reference: str) -> bool:
    """Whether a name is a reference to somebody's own code."""
    return REFERENCE.fullmatch(reference) is not None


def parts_of(reference: str) -> tuple[str, str | None]:
    """(file or module, name in it if one is given)."""
    found = REFERENCE.fullmatch(reference)
    assert found is not None, f"{reference} is no reference"
    return found["file"], found["name"]


def is_loading() -> bool:
    """Whether a module of the user's own is being imported to look up something in it."""
    return bool(_loading)


def locate(reference: str, folders: Sequence[Path] = ()) -> Code:
    """Find the file of a reference, and remember it under that name.

    Args:
        reference: as a suite has it.
        folders: where to look, before the current one.

    Raises:
        BenchError: there is no such file or module, or it cannot be read.
    """
    _codes.pop(reference, None)  # from another folder, which this one is not
    where, _ = parts_of(reference)
    places = list(dict.fromkeys(one.absolute() for one in (*folders, Path.cwd())))
    try:
        code = _code_of_file(where, places) if where.endswith(".py") else _code(where, places)
    except OSError as error:
        raise BenchError(f"cannot be read: {error.strerror}") from error
    _codes[reference] = code
    return code


def _code_of_file(where: str, places: Sequence[Path]) -> Code:
    found = [place / where for place in places if (place / where).is_file()]
    if not found:
        looked = ", ".join(map(str, places))
        raise BenchError(f"cannot be found: there is no file {where} in {looked}")
    file = found[0].resolve()
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    digest = source_digest(file, root)
    is_loose = root == file.parent
    dotted = ".".join(file.relative_to(root).with_suffix("").parts)
    # A name of its own, so that no other file of that name, nor an older state of it, is meant.
    unique = hashlib.blake2b(f"{file}\0{digest}".encode(), digest_size=6).hexdigest()
    return Code(
        module=f"own_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{unique}" if is_loose else dotted,
        file=str(file),
        root=str(root),
        is_loose=is_loose,
        digest=digest,
    )


def _code(name: str, places: Sequence[Path]) -> Code:
    for place in places:
        _add_to_path(str(place))
    try:
        spec = importlib.util.find_spec(name)
    except (Exception, SystemExit) as error:  # packages above it are run to find it
        raise BenchError(f"cannot be imported: {at_its_place(error)}") from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        looked = ", ".join(map(str, places))
        raise BenchError(
            f"cannot be imported: there is no module {name} in {looked}, nor one installed"
        )
    file = Path(spec.origin).resolve()
    depth = name.count(".") + (file.name == "__init__.py")
    root = file.parents[depth]
    return Code(
        module=name,
        file=str(file),
        root=str(root),
        is_loose=False,
        digest=source_digest(file, root),
    )


def code_of(reference: str) -> Code:
    """Where a reference leads: as was told or found before, or from the current folder.

    Raises:
        BenchError: nowhere.
    """
    known = _codes.get(reference)
    return known if known is not None else locate(reference)


def codes_of(references: Iterable[str]) -> dict[str, Code]:
    """Those among some names that are somebody's own, for other processes to be told."""
    return {one: code_of(one) for one in references if is_own(one)}


def tell(codes: Mapping[str, Code]) -> None:
    """Have this process know where code is, as another one has found it."""
    _codes.update(codes)


def require_unchanged(codes: Mapping[str, Code]) -> None:
    """Have this process run the code that was planned, and no other.

    Raises:
        BenchError: a file has changed since.
    """
    for reference, code in codes.items():
        now = source_digest(Path(code.file), Path(code.root))
        if now != code.digest:
            raise BenchError(
                f"{reference} has changed since the run was planned, or something that it imports "
                "has: start the run again"
            )


def load(code: Code) -> ModuleType:
    """Import the module, once.

    Raises:
        BenchError: running it fails; says at which of its lines.
    """
    known = sys.modules.get(code.module)
    if known is not None:
        return known
    _add_to_path(code.root)
    try:
        with _noted(code.module):
            return _run(_spec_of(code), code.module)
    except BenchError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is run
        raise BenchError(f"cannot be imported: {at_its_place(error, [code])}") from error


def _spec_of(code: Code) -> ModuleSpec:
    if code.is_loose:
        spec = importlib.util.spec_from_file_location(code.module, code.file)
    else:
        spec = importlib.util.find_spec(code.module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(code.file):
        top = code.module.partition(".")[0]
        other = spec.origin if spec is not None and spec.origin else f"another {top}"
        raise BenchError(
            f"cannot be imported: {other} comes before {code.file}, under the same name; give one "
            "of them another"
        )
    return spec


def _run(spec: ModuleSpec, name: str) -> ModuleType:
    """Import by hand, since the import system forgets a module that stops half way."""
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ReachedError:
        pass  # what is above that line is there
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextmanager
def _noted(module: str) -> Iterator[None]:
    _loading.append(module)
    try:
        yield
    finally:
        _loading.remove(module)


def _add_to_path(folder: str) -> None:
    """Last, so that no file there hides a package."""
    if folder not in sys.path:
        sys.path.append(folder)


def at_its_place(error: BaseException, codes: Iterable[Code] | None = None) -> str:
    """An exception in words, with the place in the user's own code that it comes from, if any.

    Args:
        error: with its traceback.
        codes: whose files are meant; None for all that this process knows.
    """
    place = place_of(error, codes)
    if place is not None and isinstance(error, SyntaxError):
        return f"{place}: {type(error).__name__}: {error.msg}"
    return in_words(error) if place is None else f"{place}: {in_words(error)}"


def place_of(error: BaseException, codes: Iterable[Code] | None = None) -> str | None:
    """File and line of the user's own that an exception comes from; None where there is none.

    Args:
        error: with its traceback.
        codes: as for ``at_its_place``.
    """
    known = list(_codes.values() if codes is None else codes)
    places = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    for file, line in reversed(places):
        if any(_is_part_of(Path(file), code) for code in known):
            return f"{Path(file).name}, line {line}"
    return None


def _is_part_of(path: Path, code: Code) -> bool:
    if str(path) == code.file:
        return True
    installed = Path(sysconfig.get_path("stdlib")), *OURS
    return (
        path.is_relative_to(code.root)
        and INSTALLED.isdisjoint(path.parts)
        and not any(path.is_relative_to(one) for one in installed)
    )
