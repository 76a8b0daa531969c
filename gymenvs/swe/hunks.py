"""The difference between two releases of a package, hunk by hunk: where a task's fix stands in it.

    python -m rtmc.gymenvs.swe.hunks tabulate 0.8.9 0.8.10 tabulate.py

lists the hunks of that file with their numbers, as `SdistFix.hunks` names them: from 1, file by file, in the patch of
`difftext.make_patch` from the older to the later release, with three lines of context (changes at most six lines apart
are one hunk). Lines are compared with their ends: where a file goes from `\\r\\n` to `\\n`, every line differs and the
file is one hunk.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rtmc.gymenvs import cachefolder
from rtmc.gymenvs.swe import patchtext, sdists, treefiles
from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.gitstore import PreparationError
from rtmc.gymenvs.swe.sources import Sdist, SdistFix

_LISTS = "`python -m rtmc.gymenvs.swe.hunks {fix.name} OLDER {fix.version} {file}` lists them"


def gold_patch(fix: SdistFix, tree: Path, later: Path, where: str) -> str:
    """The hunks of `fix` in the difference between two releases, unpacked in folders. Raises PreparationError."""
    parts = []
    for name, hunks in fix.hunks.items():
        at = f"{where}: {name!r} in {fix.name} {fix.version}"
        old, new = _text(tree, name, where), _text(later, name, where)
        if old == new:
            raise PreparationError(f"{where}: {name!r} is the same in {fix.name} {fix.version}; it cannot hold the fix")
        patch = _patch(name, old, new)
        try:
            parts.append(patchtext.pick(patch, hunks) if hunks else patch)
        except ValueError as error:
            raise PreparationError(
                f"{at}: {error}{_other_ends(old, new)}; {_LISTS.format(fix=fix, file=name)}"
            ) from None
    patch = "".join(parts)
    found = hashlib.sha256(patch.encode("utf-8")).hexdigest()
    if fix.patch_sha256 and found != fix.patch_sha256:
        raise PreparationError(f"{where}: the gold patch has the SHA-256 {found}, wanted {fix.patch_sha256}")
    return patch


def list_hunks(tree: Path, later: Path, name: str) -> list[str]:
    """The hunks of a file between two releases, unpacked in folders, each from its `@@` line on; the first is number 1.

    Raises:
        PreparationError: the file is no UTF-8 text.
    """
    old, new = _text(tree, name, str(tree)), _text(later, name, str(later))
    return [] if old == new else patchtext.hunks(_patch(name, old, new))


def _patch(name: str, old: str | None, new: str | None) -> str:
    return make_patch({} if old is None else {name: old}, {} if new is None else {name: new})


def _other_ends(old: str | None, new: str | None) -> str:
    """What to say where two texts end their lines in another way."""
    ends = ["\\r\\n" if "\r\n" in text else "\\n" for text in (old or "", new or "")]
    return f": its lines end with {ends[0]} before and {ends[1]} after, so that all differ" if len({*ends}) > 1 else ""


def _text(folder: Path, name: str, where: str) -> str | None:
    data = treefiles.read(folder, name)
    if data is None:
        return None
    content = treefiles.content_of(data)
    if isinstance(content, bytes):
        raise PreparationError(f"{where}: {name!r} is no UTF-8 text; a patch of it cannot be told")
    return content


def _listing(name: str, versions: list[str], files: list[str], cache: Path, folder: Path | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rtmc-hunks-") as place:
        trees = [Path(place, part) for part in ("old", "later")]
        for version, tree in zip(versions, trees, strict=True):
            sdists.unpack(sdists.fetch(Sdist(name, version), cache, folder)[0], tree, f"{name} {version}")
        for path in files or _python_files(trees):
            found = list_hunks(trees[0], trees[1], path)
            ends = _other_ends(*(_text(tree, path, name) for tree in trees))
            yield f"{path}: {len(found)} hunk{'' if len(found) == 1 else 's'}{ends}\n"
            for number, hunk in enumerate(found, 1):
                yield f"hunk {number} of {path}\n{hunk}"


def _python_files(trees: list[Path]) -> list[str]:
    """The Python files that differ."""
    found = {str(one.relative_to(tree)) for tree in trees for one in tree.rglob("*.py")}
    return [path for path in sorted(found) if treefiles.read(trees[0], path) != treefiles.read(trees[1], path)]


def main(words: list[str]) -> int:
    """Lists the hunks of files between two releases of a package, with the numbers that `SdistFix.hunks` wants."""
    parser = argparse.ArgumentParser(prog="python -m rtmc.gymenvs.swe.hunks", description=main.__doc__)
    parser.add_argument("name", metavar="NAME", help="the package")
    parser.add_argument("versions", nargs=2, metavar="VERSION", help="the older release and the later one")
    parser.add_argument("files", nargs="*", metavar="FILE", help="paths in the archives (default: Python files)")
    parser.add_argument("--sdists", type=Path, metavar="FOLDER", help="look for the archives here first")
    given = parser.parse_args(words)
    try:
        for text in _listing(
            given.name, given.versions, given.files, cachefolder.cache_folder("swe") / "sdists", given.sdists
        ):
            print(text, end="")
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
