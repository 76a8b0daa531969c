"""Ids of tests: what one id of a task means among the ids of a run.

A task names its tests as its data set printed them, a run as its runner does. Where they differ, these rules hold:

- the same text is the same test;
- an id with more `[` than `]` was cut off inside its parameter, at a blank as a rule (676 ids of SWE-bench Verified):
  it stands for every test of the run whose id begins with it;
- an id with blanks also stands for what a reader of logs sees that splits lines at blanks: its first word.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["files_of", "is_cut_off", "matches"]


def is_cut_off(test: str) -> bool:
    """Whether the id ends inside its parameter."""
    return test.count("[") > test.count("]")


def matches(test: str, known: Iterable[str]) -> tuple[str, ...]:
    """The tests of a run that the id of a task stands for, in the run's order; () = it is missing.

    Args:
        test: an id as the task has it.
        known: ids of the run; a mapping or a set makes the common case quick.
    """
    known = known if isinstance(known, (dict, set, frozenset)) else tuple(known)
    if test in known:
        return (test,)
    if is_cut_off(test):
        return tuple(one for one in known if one.startswith(test))
    first = test.split(maxsplit=1)[0] if test.strip() else test
    # A reader that splits at blanks leaves `test[a` of `test[a b]`; nothing else of the run may be meant by that.
    if first != test and is_cut_off(first) and first in known:
        return (first,)
    return ()


def files_of(tests: Iterable[str]) -> tuple[str, ...]:
    """The files that pytest ids name, each once, in the order of their first id."""
    return tuple(dict.fromkeys(test.split("::", 1)[0] for test in tests if test.split("::", 1)[0]))
