"""What one step did, in terms of files: the common tongue of the shell reader and the editor reader.

What this is not: nothing here knows the repository's root, the open file or the answer; `rtmc.signatures.swe` binds
effects to a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

# The ten action classes of RTMC's Table 1 (arXiv 2604.11037), by effect and not by the tool's name.
CLASSES = ("view", "search", "modify", "create", "execute", "test", "install", "fileop", "think", "finish")

# Where one step has several effects, its class is the first of these that occurs: what changes the repository or ends
# the episode says more about a step than what it looked at on the way.
PRECEDENCE = ("finish", "modify", "create", "fileop", "install", "test", "execute", "search", "view", "think")


@dataclass(frozen=True, slots=True)
class Swap:
    """One text, or what a pattern matches, put in the place of another.

    old, new   the texts; with a `dialect` (rtmc/signatures/patterns.py), a pattern and its replacement
    count      how many are replaced, from the first on; 0 = all; ONLY = there has to be one, as editors demand
    """

    old: str
    new: str
    count: int = -1
    dialect: str = ""


# As `Swap.count`.
ONLY = -1


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of an action.

    category   one of CLASSES
    path       file or folder as the action writes it; "" = the working directory, ":/" = the whole repository, None =
               the file open in the editor
    scope      view: "full" / "partial" / "window" (the answer tells the lines) / another word; modify: "replace" /
               "insert" / "range" / "overwrite" / "sed" / "sed-E" / "perl" (a programme, in that dialect of regular
               expressions) / "undo" / "patch"; fileop: "delete" / "move" / "copy" / "revert" / another word; else a
               word that the action key shows
    lines      view: first and last line, 1-based, inclusive; -1 = to the end, other negative = counted from the end;
               modify "range": the lines that are replaced (first > last: inserted before `first`); "insert": the
               same, where the place is told
    old, new   text before and after, where the action says it; of a programme, it is in `new`
    swaps      modify "replace": what is replaced, one after the other, where it is told in several parts or by patterns
    target     move and copy: where to; modify "patch": the file that holds the patch
    term       what was searched for
    aside      says nothing of the step's class when the step has another effect (an `echo`, a log file written)
    shell      done by a shell command, whose failure is told by an exit status or its own message
    unit       the command's place in `Understood.units`; -1 = none
    """

    category: str
    path: str | None = ""
    scope: str = ""
    lines: tuple[int, int] | None = None
    old: str | None = None
    new: str | None = None
    target: str = ""
    term: str = ""
    aside: bool = False
    shell: bool = False
    unit: int = -1
    swaps: tuple[Swap, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """One pipeline of a command line, and what it hangs on.

    names     the programs of the pipeline
    join      "&&" or "||" between it and the one before; ";" = it is not held back
    leader    place of the first unit of the group that it stands in, which runs only if that one does; -1 = none
    negated   its status is turned round by `!`
    piped     the status is another command's, a filter's
    hides     streams ("1", "2") that go into a file and not into the answer
    source    what a traceback calls the program that is run: a script's path, "<stdin>", "<string>"; "" = not told
    folder    the unit is a `cd` to this folder, as the line writes it
    """

    names: tuple[str, ...]
    join: str = ";"
    leader: int = -1
    negated: bool = False
    piped: bool = False
    hides: frozenset[str] = frozenset()
    source: str = ""
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Understood:
    """What an action does, in order.

    effects   in the order of the action
    folder    where a shell stands afterwards, as the action writes it: "" = where it stood before
    window    the action is one of a windowed editor, whose answer shows the open file
    cursors   lines that a windowed editor's cursors were set to, for the edits that follow
    units     the pipelines of a command line, in order
    """

    effects: tuple[Effect, ...]
    folder: str = ""
    window: bool = False
    cursors: tuple[int, int] | None = None
    units: tuple[Unit, ...] = ()
