"""Errors of paths in a work tree. All are ValueErrors: of a path that an agent gave, for a text that tells it so."""

from __future__ import annotations

import errno


class TreeError(ValueError):
    """A path that cannot be used as asked. `path` is the path as it was given."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r} {what}")
        self.path = path
        self.what = what

    def __reduce__(self) -> tuple[type[TreeError], tuple[str, str]]:
        return type(self), (self.path, self.what)


class OutsideTree(TreeError):
    """The path, or a link on it, leads out of the tree."""


class NotFound(TreeError):
    """Nothing has this path."""


class IsFolder(TreeError):
    """A file was wanted."""


class NotFolder(TreeError):
    """A folder was wanted, or a component before the last is none."""


class NotRegular(TreeError):
    """A pipe, socket or device: never opened."""


class TooLarge(TreeError):
    """More bytes than the limit, or the tree's space is used up."""


class NoAccess(TreeError):
    """The permissions refuse it."""


class BadPath(TreeError):
    """No path at all: a NUL byte, too long, or too many links on the way."""


def refusal(path: str, error: OSError) -> TreeError:
    """The error of the tree for one of the system."""
    kinds: dict[int, tuple[type[TreeError], str]] = {
        errno.ENOENT: (NotFound, "does not exist"),
        errno.ENOTDIR: (NotFolder, "has a component that is no folder"),
        errno.EISDIR: (IsFolder, "is a folder"),
        errno.ELOOP: (BadPath, "became a link while it was being opened"),
        errno.ENXIO: (NotRegular, "is a pipe, socket or device"),
        errno.ENAMETOOLONG: (BadPath, "has a name longer than the file system takes"),
        errno.ENOSPC: (TooLarge, "does not fit: the tree's space is used up"),
        errno.EDQUOT: (TooLarge, "does not fit: the tree's space is used up"),
        errno.EFBIG: (TooLarge, "does not fit: the file would be too large"),
        errno.EACCES: (NoAccess, "is not accessible: its permissions, or a folder's on the way, refuse it"),
        errno.EPERM: (NoAccess, "is not accessible: its permissions, or a folder's on the way, refuse it"),
    }
    kind, what = kinds.get(error.errno or 0, (TreeError, f"cannot be used: {error.strerror}"))
    return kind(path, what)
