"""What a rollout has done to each file so far, and the state key that says so: `file:OPS|file:OPS|(FLAGS)`.

The codes are those of RTMC's Table 2 (arXiv 2604.11037): `Vf` whole file seen, `V[b]` or `V[lo-hi]` lines seen, `S`
searched, `M:hhhh` modified, `I:hhhh` inserted, `C` created; ours are `D` deleted and, for the classes that enter a
state only on request, `X:ok` / `X:error` executed and `P` installed. OPS are a set, files are sorted, so the order of
work does not show.
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass, field

# Past this length a key names the first files and stands for the rest by a hash: a rollout of thousands of steps must
# not cost its square.
_MAX_KEY = 6000


@dataclass(slots=True)
class _File:
    """seen = codes of what was looked at; done = codes of what was changed, in order; staged, committed = what `done`
    was when git's index, and git's history, took it in (None = they did not)."""

    seen: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    staged: list[str] | None = None
    committed: list[str] | None = None

    def codes(self) -> str:
        return ",".join(sorted({*self.seen, *self.done}))


class Worktree:
    """The files that a rollout has touched. Names are relative to the root (rtmc/signatures/paths.py)."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._shown: dict[str, str] = {}  # name -> `name:OPS` of the files that have codes
        self._order: list[str] = []
        self._length = 0
        self._sum = 0
        self._aside: dict[str, list[str]] = {}
        self.flags = {"test_fail_count": 0, "test_pass_count": 0, "think_count": 0}

    def exists(self, name: str) -> bool:
        """Whether the rollout has shown that the file is there."""
        file = self._files.get(name)
        return file is not None and bool(file.seen or file.done) and file.done[-1:] != ["D"]

    def saw(self, name: str, code: str) -> None:
        """The file was looked at (or run)."""
        self._file(name).seen.add(code)
        self._render(name)

    def did(self, name: str, code: str) -> None:
        """The file was changed."""
        file = self._file(name)
        if file.done[-1:] == ["D"]:
            file.done.clear()
        file.done.append(code)
        self._render(name)

    def undid(self, name: str) -> None:
        """The last change of the file was taken back."""
        file = self._file(name)
        if file.done:
            file.done.pop()
        self._render(name)

    def deleted(self, name: str) -> None:
        """The file, or the folder with all below it, is gone; what was changed in it is gone too."""
        below = [other for other in self._files if other.startswith(name + "/")]
        for gone in below or [name]:
            self._file(gone).done = ["D"]
            self._render(gone)

    def moved(self, source: str, target: str) -> None:
        """The file has another name; its changes go with it."""
        done = [code for code in self._file(source).done if code not in ("C", "D")]
        self.deleted(source)
        self._file(target).done = ["C", *done]
        self._render(target)

    def reverted(self, name: str, whence: str = "index") -> None:
        """Changes of tracked files are taken back ("." = of all), to what the index holds, to the last commit ("HEAD",
        "stash") or to before the commits ("back"); files that the rollout made and did not add are not tracked."""
        for other, file in self._below(name):
            tracked = file.staged is not None or file.committed is not None
            if not file.done or ("C" in file.done and not tracked):
                continue
            if whence == "stash":
                self._aside[other] = file.done
            kept = {"index": file.staged or file.committed, "back": None}.get(whence, file.committed)
            file.done = list(kept or [])
            file.staged = None if whence != "index" else file.staged
            self._render(other)

    def staged(self, name: str, back: bool = False) -> None:
        """`git add`: the index holds the file as it is ("." = all files); `back`: no longer."""
        for _, file in self._below(name):
            file.staged = None if back or not file.done else list(file.done)

    def committed(self, everything: bool) -> None:
        """`git commit`: what the index holds, or `everything` that is tracked, is in the history."""
        for file in self._files.values():
            tracked = file.staged is not None or file.committed is not None or "C" not in file.done
            if everything and tracked:
                file.staged = list(file.done)
            if file.staged is not None:
                file.committed = file.staged

    def _below(self, name: str) -> list[tuple[str, _File]]:
        """The file of that name and those in the folder of that name; "." = all."""
        inside = name + "/"
        return [(k, file) for k, file in self._files.items() if name in (".", k) or k.startswith(inside)]

    def restored(self) -> None:
        """What was reverted last is there again (`git stash pop`)."""
        for name, done in self._aside.items():
            self._file(name).done = done
            self._render(name)
        self._aside = {}

    def key(self) -> str:
        """The state key."""
        flags = ",".join(f"{name}={count}" for name, count in sorted(self.flags.items()))
        if self._length <= _MAX_KEY:
            return "|".join([*(self._shown[name] for name in self._order), f"({flags})"])
        first, used = [], 0
        for name in self._order:
            used += len(self._shown[name]) + 1
            if used > _MAX_KEY // 2:
                break
            first.append(self._shown[name])
        rest = f"...{len(self._order) - len(first)} more files:{self._sum:032x}"
        return "|".join([*first, rest, f"({flags})"])

    def _file(self, name: str) -> _File:
        return self._files.setdefault(name, _File())

    def _render(self, name: str) -> None:
        """Bring the file's part of the key, and the sum over all parts, up to date."""
        codes = self._files[name].codes()
        before, after = self._shown.get(name), f"{name}:{codes}" if codes else None
        if before == after:
            return
        if before is not None:
            self._length -= len(before) + 1
            self._sum = (self._sum - _number(before)) % 2**128
            del self._shown[name]
        if after is not None:
            self._length += len(after) + 1
            self._sum = (self._sum + _number(after)) % 2**128
            self._shown[name] = after
        if before is None:
            bisect.insort(self._order, name)
        elif after is None:
            del self._order[bisect.bisect_left(self._order, name)]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
