"""Which code a file of the user's own is: a digest over it and what it imports of its neighbours.

Results of a file that was changed are results of something else, also where the change is in a
module beside it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

OURS = tuple(Path(__file__).resolve().parents[2] / name for name in ("bench", "workloads"))
INSTALLED = frozenset({"site-packages", "dist-packages"})
MAX_FILES = 1000


def source_digest(file: Path, root: Path) -> str:
    """Of a file and all that it imports from below a folder, itself or through others.

    What is installed is left out, since its versions are in every run's environment; data files and
    modules whose names are put together while the code runs are not seen.

    Args:
        file: absolute.
        root: absolute; where its imports are looked for first.
    """
    found: dict[Path, bytes] = {}
    waiting = [file]
    while waiting and len(found) < MAX_FILES:
        one = waiting.pop()
        if one not in found:
            found[one] = one.read_bytes()
            waiting += _neighbours(one, found[one], root, within=_package(file, root))
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(found):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(hashlib.blake2b(found[path]).digest())
    return digest.hexdigest()


def _package(file: Path, root: Path) -> Path | None:
    """Of what is installed, the folder of its own package; None for what is not."""
    if INSTALLED.isdisjoint(file.parts):
        return None
    return root / file.relative_to(root).parts[0]


def _neighbours(file: Path, source: bytes, root: Path, *, within: Path | None) -> Iterator[Path]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        for base, name in _names(node, file, root):
            for path in _files(base, name):
                is_installed = not INSTALLED.isdisjoint(path.parts)
                allowed = path.is_relative_to(within) if within is not None else not is_installed
                if not any(path.is_relative_to(ours) for ours in OURS) and allowed:
                    yield path


def _names(node: ast.AST, file: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """(folder, dotted name) of each module that a statement may import."""
    match node:
        case ast.Import(names=names):
            yield from ((root, alias.name) for alias in names)
        case ast.ImportFrom(module=module, level=level, names=names):
            base = file.parents[level - 1] if level else root
            if not base.is_relative_to(root):
                return
            stem = f"{module}." if module else ""
            yield from ((base, f"{stem}{alias.name}") for alias in names)
            if module:
                yield base, module


def _files(base: Path, name: str) -> Iterator[Path]:
    """The files of a module and of the packages that it lies in."""
    folder = base
    for part in name.split("."):
        folder = folder / part
        for path in (folder.with_name(f"{part}.py"), folder / "__init__.py"):
            if path.is_file():
                yield path
