"""Where a task's files come from: embedded, a folder, a commit of a clone, a release of a package, an image.

These only name a source; `repository.prepare` makes a tree of it. Each has a JSON form, an object whose `kind` is the
class's name in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rtmc.gymenvs.swe import checks

_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508 names
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_COMMIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/^~-]*")  # never begins like an option


def commit_name(got: object, where: str) -> str:
    """What may name a commit: a hash, or another name that git knows and never takes for an option."""
    found = checks.text(got, where)
    if not _COMMIT.fullmatch(found):
        raise checks.fault(where, "a commit of a git repository", got)
    return found


@dataclass(frozen=True, slots=True)
class Embedded:
    """The files themselves.

    Attributes:
        files: path -> text, or bytes where it is no UTF-8 text.
    """

    files: Mapping[str, str | bytes] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", checks.files(self.files, "Embedded: field `files`"))
        if not self.files:
            raise ValueError("Embedded: field `files`: wanted at least one file, got none")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is ready to be worked in. It is copied, never written to; any `.git` in it is left behind.

    Attributes:
        path: the folder.
        python: the interpreter of the environment that its tests run in, such as `.../venv/bin/python`;
            "" = this interpreter's base with pytest and the task's `python_packages`.
    """

    path: str
    python: str = ""

    def __post_init__(self) -> None:
        checks.text(self.path, "Folder: field `path`", filled=True)
        checks.text(self.python, "Folder: field `python`")


@dataclass(frozen=True, slots=True)
class Clone:
    """A commit of a local git repository.

    Attributes:
        path: a clone (with or without a working tree) or a bundle. It is only read.
        commit: a commit, in full or shortened; or a name that git knows there.
        python: as in `Folder`.
    """

    path: str
    commit: str
    python: str = ""

    def __post_init__(self) -> None:
        checks.text(self.path, "Clone: field `path`", filled=True)
        checks.text(self.python, "Clone: field `python`")
        commit_name(self.commit, "Clone: field `commit`")


@dataclass(frozen=True, slots=True)
class Sdist:
    """The source archive of a release of a package on the registry.

    Attributes:
        name, version: of the release.
        sha256: of the archive; "" = whatever the registry gives (the hash then goes into the prepared task's `meta`).
    """

    name: str
    version: str
    sha256: str = ""

    def __post_init__(self) -> None:
        if not _PACKAGE.fullmatch(checks.text(self.name, "Sdist: field `name`")):
            raise checks.fault("Sdist: field `name`", "the name of a package", self.name)
        if not _VERSION.fullmatch(checks.text(self.version, "Sdist: field `version`")):
            raise checks.fault("Sdist: field `version`", "one version", self.version)
        checks.digest(self.sha256, "Sdist: field `sha256`")


@dataclass(frozen=True, slots=True)
class Image:
    """A container image that the public data set names. Images are not run here: preparing such a task raises, unless
    a clone or a folder for it is given then.

    Attributes:
        image: its name; "" = the data set names none.
        repo: `owner/name` of the repository in it.
        commit: that the repository stands at.
    """

    image: str
    repo: str = ""
    commit: str = ""

    def __post_init__(self) -> None:
        for name in ("image", "repo", "commit"):
            checks.text(getattr(self, name), f"Image: field `{name}`")


@dataclass(frozen=True, slots=True)
class SdistFix:
    """A fix that a later release brought, told by where it stands in that release: facts, not its text.

    `repository.prepare` computes the gold patch: some hunks of the difference between the task's source and this
    release, in the named files. How they are numbered, and a command that lists them, has `rtmc.gymenvs.swe.hunks`.

    Attributes:
        name, version, sha256: the later release's source archive.
        hunks: path -> numbers of the hunks that are the fix; () = all of the file's.
        test_files: paths in that release which are laid over the tree for grading.
        patch_sha256: of the gold patch so computed; "" = not checked.
    """

    name: str
    version: str
    sha256: str
    hunks: Mapping[str, tuple[int, ...]] = field(hash=False)
    test_files: tuple[str, ...] = ()
    patch_sha256: str = ""

    def __post_init__(self) -> None:
        Sdist(self.name, self.version, self.sha256)
        where = "SdistFix: field `hunks`"
        hunks: dict[str, tuple[int, ...]] = {}
        for name, numbers in checks.record(self.hunks, where).items():
            at = f"{where}[{name!r:.60}]"
            listed = tuple(numbers) if isinstance(numbers, (list, tuple)) else None
            if listed is None or not all(type(one) is int and one > 0 for one in listed):
                raise checks.fault(at, "a list of numbers from 1", numbers)
            if list(listed) != sorted(set(listed)):
                raise checks.fault(at, "rising numbers", numbers)
            hunks[checks.path(name, at)] = listed
        if not hunks:
            raise checks.fault(where, "at least one file", self.hunks)
        object.__setattr__(self, "hunks", hunks)
        object.__setattr__(self, "test_files", checks.paths(self.test_files, "SdistFix: field `test_files`"))
        checks.digest(self.patch_sha256, "SdistFix: field `patch_sha256`")


Source = Embedded | Folder | Clone | Sdist | Image
SOURCES: dict[str, type[Source]] = {one.__name__.lower(): one for one in (Embedded, Folder, Clone, Sdist, Image)}


def source_json(source: Source) -> dict[str, Any]:
    """The JSON object of a source: its `kind` and its fields, those that hold nothing left out."""
    return {"kind": type(source).__name__.lower(), **part_json(source)}


def source_from_json(got: object, where: str) -> Source:
    """The source of its JSON object. Raises ValueError that names the field."""
    values = dict(checks.record(got, where))
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in SOURCES:
        raise checks.fault(f"{where}: field `kind`", f"one of {', '.join(SOURCES)}", kind)
    source: Source = part_from_json(SOURCES[kind], values, where)
    return source


def part_json(part: Any) -> dict[str, Any]:
    """The fields of a source or a fix as a JSON object."""
    values: dict[str, Any] = {}
    for one in fields(part):
        value = getattr(part, one.name)
        if one.name == "files":
            value = checks.files_json(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = {key: list(item) for key, item in value.items()}
        if value not in ("", []):
            values[one.name] = value
    return values


def part_from_json(kind: Any, got: object, where: str) -> Any:
    """A source or a fix of its JSON object. Raises ValueError that names the field."""
    values = checks.record(got, where)
    required = [one.name for one in fields(kind) if one.name in ("files", "path", "name", "version", "hunks")]
    checks.known_keys(values, where, [one.name for one in fields(kind)], required)
    defaults = {"commit": "", "image": "", "sha256": ""}
    absent = {one.name: defaults[one.name] for one in fields(kind) if one.name in defaults}
    try:
        return kind(**{**absent, **values})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
