"""Patches applied to a folder that an agent filled, whole or not at all.

`git apply` does the arithmetic, so that a patch means here what it means everywhere (offsets are searched for, the
context must be there, nothing is guessed). It never runs in the tree: the files that the patch names are laid into
a scratch folder, git works there with a configuration of ours alone, and what it made is written back through
`TreeFolder`. So nothing that the tree's own `.git/config`, hooks, filters or file system monitors say is read or run,
and no path, link or `..` of the patch leads out of the tree. Its `.gitattributes` count only where `convert` says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rtmc.gymenvs.swe.difftext import Blob, make_patch, unquoted, write_patch
from rtmc.gymenvs.swe.errors import NotFound, TreeError
from rtmc.gymenvs.swe.folders import walk_folder
from rtmc.gymenvs.swe.patchtext import hunk_of
from rtmc.gymenvs.swe.paths import TreeFolder

__all__ = ["Blob", "PatchError", "apply_patch", "make_patch", "patched", "write_patch"]

TIMEOUT_S = 120.0
# Whatever a .gitattributes says that the patch brings: no conversion of line ends, encodings or keywords, no filter.
_ATTRIBUTES = "* -text -eol -crlf -ident -filter -working-tree-encoding -whitespace\n"
# With `convert` git converts as it would in a checkout, which is arithmetic; a filter would be a program.
_CONVERTING = "* -filter -whitespace\n"
_NAMES = re.compile(r"(?:--- |\+\+\+ |(?:rename|copy) (?:from|to) )(.*)")
_BOTH = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|.*) ("(?:[^"\\]|\\.)*"|.*)')
_FAILED = re.compile(r"error: patch failed: (.*):(\d+)$", re.MULTILINE)
_FILE = re.compile(r"error: (.*): (patch does not apply|[^:\n]+)$", re.MULTILINE)


class PatchError(ValueError):
    """A patch that cannot be applied; the tree is as it was.

    Attributes:
        path: the file at fault, "" where git doesn't say.
        line: the line of the file at which the hunk at fault should begin; None where it is no hunk.
    """

    def __init__(self, what: str, path: str = "", line: int | None = None) -> None:
        super().__init__(what)
        self.path = path
        self.line = line

    def __reduce__(self) -> tuple[type[PatchError], tuple[str, str, int | None]]:
        return type(self), (str(self), self.path, self.line)


def apply_patch(
    target: TreeFolder | Path, patch: str | bytes, *, reverse: bool = False, convert: bool = False
) -> tuple[str, ...]:
    """Apply a unified diff (git's or plain, names with `a/` and `b/`) and give the paths it changed, in order.

    Folders that it empties are removed, as git does. A blank patch changes nothing. A hunk that ends without a line of
    context fits only at the end of its file, which is git's rule.

    Args:
        target: the tree, or any folder.
        patch: the diff; a str as UTF-8.
        reverse: take it back.
        convert: the target is a checkout, and the patch was made by `git diff`: line ends, encodings and `$Id$` are
            converted on the way as the target's `.gitattributes` say, so that a patch with plain line ends fits a file
            that the checkout gave `\\r\\n`, and a file that it adds gets them. What the patch touches comes out as
            `git apply` leaves it. Else bytes are compared with bytes.

    Raises:
        PatchError: it is no patch, doesn't fit the files, or leads out of the tree or into `.git`.
        RuntimeError: there is no git on this machine.
    """
    with _opened(target) as tree:
        return _write_back(tree, *_outcome(tree, patch, reverse, convert))


def patched(
    target: TreeFolder | Path, patch: str | bytes, *, reverse: bool = False, convert: bool = False
) -> dict[str, tuple[Blob | None, Blob | None]]:
    """What `apply_patch` would change: path -> what is there and what would be, None for nothing. The target stays."""
    with _opened(target) as tree:
        before, after = _outcome(tree, patch, reverse, convert)
    return {path: (before.get(path), after.get(path)) for path in _changed(before, after)}


@contextlib.contextmanager
def _opened(target: TreeFolder | Path) -> Iterator[TreeFolder]:
    if isinstance(target, TreeFolder):
        yield target
        return
    with contextlib.closing(TreeFolder(target)) as tree:
        yield tree


def _outcome(
    tree: TreeFolder, patch: str | bytes, reverse: bool, convert: bool
) -> tuple[dict[str, Blob], dict[str, Blob]]:
    """The files that the patch names, and what it makes of them. Raises as `apply_patch`."""
    text = patch.encode("utf-8", "surrogateescape") if isinstance(patch, str) else patch
    if not text.strip():
        return {}, {}
    git = shutil.which("git")
    if git is None:
        raise RuntimeError("applying a patch takes git (2.20 or later) on PATH: install it")
    with tempfile.TemporaryDirectory(prefix="rtmc-patch-") as scratch:
        work = Path(scratch, "work")
        work.mkdir()
        before: dict[str, Blob] = {}
        unusable: dict[str, TreeError] = {}
        named = _named(text)
        for path in sorted(named | _attribute_files(named) if convert else named):
            _lay(tree, work, path, before, unusable)
        _make_repository(Path(scratch, "git"), _CONVERTING if convert else _ATTRIBUTES)
        try:
            for part in _in_turn(text, reverse):
                _git_apply(git, Path(scratch), part, reverse)
        except PatchError as error:
            if error.path in unusable:
                raise PatchError(f"{unusable[error.path]}: a patch cannot change it", error.path) from None
            if error.line is None or error.path not in before:
                raise
            why = _why(text, error.path, error.line, reverse, before[error.path])
            raise PatchError(f"{error}{why}", error.path, error.line) from None
        return before, _blobs(work)


def _attribute_files(paths: Iterable[str]) -> set[str]:
    """The files that hold the attributes of these: one may lie in each folder above."""
    above = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(path.count("/") + 1)}
    return {f"{folder}/.gitattributes".removeprefix("/") for folder in above}


def _named(patch: bytes) -> set[str]:
    """Every path that may be one of the patch's files: more than its files does no harm, they are only laid out."""
    found: set[str] = set()
    for line in patch.decode("utf-8", "surrogateescape").split("\n"):
        line = line.rstrip("\r")
        if both := _BOTH.fullmatch(line):
            names = list(both.groups())
            rest = line.removeprefix("diff --git ")
            names.append(rest[: len(rest) // 2])  # an unquoted name with blanks, the same on both sides
        elif one := _NAMES.fullmatch(line):
            names = [one[1], one[1].partition("\t")[0]]
        else:
            continue
        for name in names:
            plain = unquoted(name)
            found |= {plain, plain.partition("/")[2]}
    return {name for name in found if name and name != "/dev/null" and "\0" not in name}


def _in_turn(patch: bytes, reverse: bool) -> list[bytes]:
    """The patch, in two where a folder takes the place of a link: first what takes such links away, then the rest.

    git looks for links on the way to a new file by asking the file system, which follows the link that is about to go:
    it would refuse the file where the link leads to another link, or round in a circle.
    """
    going = b"new file mode 120000" if reverse else b"deleted file mode 120000"
    if going not in patch:
        return [patch]
    named = _named(patch)
    first: list[bytes] = []
    rest: list[bytes] = []
    for section in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE):
        of_link = any(line.rstrip(b"\r") == going for line in section.split(b"\n", 5)[:5])
        replaced = of_link and any(path.startswith(f"{link}/") for link in _named(section) for path in named)
        (first if replaced else rest).append(section)
    return [part for part in (b"".join(first), b"".join(rest)) if part.strip()]


def _lay(tree: TreeFolder, work: Path, path: str, before: dict[str, Blob], unusable: dict[str, TreeError]) -> None:
    """Put what the tree has at a path, and at each folder of it, into the scratch folder; no link is followed."""
    names = path.split("/")
    if any(name in ("", ".", "..") or name.lower() == ".git" for name in names):
        return  # git says what is wrong with it
    for depth in range(1, len(names) + 1):
        part = "/".join(names[:depth])
        try:
            blob = _blob(tree, part)
        except NotFound:
            return
        except TreeError as error:
            unusable[part] = error  # no matter if the patch doesn't change it after all
            return
        if blob is None:
            (work / part).mkdir(exist_ok=True)
            continue
        if part not in before:
            before[part] = blob
            _put(work / part, blob)
        return


def _blob(tree: TreeFolder, path: str) -> Blob | None:
    """What the tree has at a path, its end not followed; None for a folder. Raises NotFound and other TreeErrors."""
    if tree.is_link(path):
        return Blob(0o120000, os.fsencode(tree.read_link(path)))
    if tree.is_folder(path):
        return None
    with tree.open(path) as file:
        executable = os.fstat(file.fileno()).st_mode & 0o100
    return Blob(0o100755 if executable else 0o100644, tree.read(path))


def _put(file: Path, blob: Blob) -> None:
    assert blob.content is not None
    if blob.mode == 0o120000:
        os.symlink(blob.content, os.fsencode(file))
        return
    file.write_bytes(blob.content)
    file.chmod(blob.mode & 0o777)


def _make_repository(repository: Path, attributes: str) -> None:
    for folder in ("objects", "refs", "info"):
        (repository / folder).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/none\n")
    (repository / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    (repository / "info" / "attributes").write_text(attributes)


def _git_apply(git: str, scratch: Path, patch: bytes, reverse: bool) -> None:
    environment = {
        "PATH": os.path.dirname(git),
        "HOME": str(scratch),
        "LC_ALL": "C",
        "GIT_DIR": str(scratch / "git"),
        "GIT_WORK_TREE": str(scratch / "work"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
    }
    command = [git, "apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
    try:
        done = subprocess.run(
            command, input=patch, cwd=scratch / "work", env=environment, capture_output=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise PatchError(f"git apply took more than {TIMEOUT_S:.0f} s over the patch") from None
    if done.returncode:
        raise _explained(done.stderr.decode("utf-8", "replace").strip())


def _explained(complaint: str) -> PatchError:
    """git's words, with the file and the hunk picked out."""
    failed = _FAILED.search(complaint)
    if failed:
        path, line = failed[1], int(failed[2])
        what = f"the lines that its hunk at line {line} changes are not there"
        return PatchError(f"the patch does not apply to {path!r}: {what}", path, line)
    first = complaint.partition("\n")[0]
    named = _FILE.search(complaint)
    if named and ".." in named[1].split("/"):
        return PatchError(f"the patch cannot be applied: its path {named[1]!r} leads out of the tree", named[1])
    return PatchError(f"the patch cannot be applied: {first.removeprefix('error: ')}", named[1] if named else "")


def _why(patch: bytes, path: str, line: int, reverse: bool, blob: Blob) -> str:
    """What else can be said of lines that git doesn't find in a file: two things that are hard to see."""
    hunk = hunk_of(patch.decode("utf-8", "surrogateescape"), path, line, reverse=reverse)
    lines = [one for one in (hunk or [])[1:] if not one.startswith("\\")]
    wanted = "".join(one[1:] for one in lines if one[0] in (" +" if reverse else " -")).encode(
        "utf-8", "surrogateescape"
    )
    content = blob.content or b""
    if not wanted:
        return ""
    if wanted in content and lines[-1][0] in "+-":
        return ": a hunk without a line of context behind its changes has to fit at the file's end, and it does not"
    if wanted not in content and wanted.replace(b"\r\n", b"\n") in content.replace(b"\r\n", b"\n"):
        return ": they are, with other line ends (\\r\\n or \\n)"
    return ""


def _blobs(work: Path) -> dict[str, Blob]:
    found: dict[str, Blob] = {}
    folder = os.open(work, os.O_PATH | os.O_DIRECTORY)
    try:
        for entry in walk_folder(folder):
            mode = entry.stat.st_mode
            if stat.S_ISLNK(mode):
                found[entry.path] = Blob(0o120000, os.fsencode(os.readlink(entry.name, dir_fd=entry.folder)))
            elif stat.S_ISREG(mode):
                content = (work / entry.path).read_bytes()
                found[entry.path] = Blob(0o100755 if mode & 0o100 else 0o100644, content)
    finally:
        os.close(folder)
    return found


def _changed(before: Mapping[str, Blob], after: Mapping[str, Blob]) -> list[str]:
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _write_back(tree: TreeFolder, before: dict[str, Blob], after: dict[str, Blob]) -> tuple[str, ...]:
    changed = _changed(before, after)
    # What goes before what comes: a file may take the place of a folder, and the other way round.
    order = sorted(changed, key=lambda path: path in after)
    done: list[str] = []
    try:
        for path in order:
            done.append(path)
            _change(tree, path, before.get(path), after.get(path))
    except TreeError as error:
        for path in reversed(done):
            _undo(tree, path, before.get(path))
        raise PatchError(f"the patch cannot be written: {error}", error.path) from error
    return tuple(changed)


def _change(tree: TreeFolder, path: str, old: Blob | None, new: Blob | None) -> None:
    if old is not None and (new is None or 0o120000 in (old.mode, new.mode)):
        tree.remove(path)
        if new is None:
            tree.remove_empty(path.rpartition("/")[0])
    if new is None:
        return
    assert new.content is not None
    if new.mode == 0o120000:
        tree.make_link(path, os.fsdecode(new.content), parents=True)
    else:
        # Other bits of the permissions than git's stay.
        mode = None if old is not None and old.mode == new.mode else new.mode & 0o777
        tree.write(path, new.content, parents=True, mode=mode)


def _undo(tree: TreeFolder, path: str, old: Blob | None) -> None:
    """Put a path back as it was, from whatever the failed change left of it."""
    if not tree.is_folder(path) and (tree.is_link(path) or tree.exists(path)):
        tree.remove(path)
    _change(tree, path, None, old)
