"""Shipped tasks and fixes that look done: those that mend the issue's example alone, or break something beside it, get
nothing; right ones of several shapes get everything."""

from functools import lru_cache

import pytest

from rtmc.gymenvs.swe.grading import Verdict, grade
from rtmc.gymenvs.swe.mutate.readyset import ready_tasks
from rtmc.gymenvs.swe.repository import prepare
from rtmc.gymenvs.swe.tree import WorkTree
from tests.sandbox_help import NEEDS_SANDBOX

pytestmark = NEEDS_SANDBOX

TILDE = 'part.replace("~0", "~").replace("~1", "/")'
DROPS = "            if value:\n"
ORDER = "value = tuple(value.items())"
BIND = "bound = signature.bind(*args, **kwargs)"
# Task -> file, then (what is there, what is put there).
WRONG = {
    "nestdiff-tilde-keys": (
        "nestdiff/pointer.py",
        [
            (TILDE, f'("~1" if part == "~01" else {TILDE})'),
            (TILDE, f'("~1" + part[3:] if part.startswith("~01") else {TILDE})'),
            (TILDE, 'part.replace("~01", "~1").replace("~0", "~").replace("~1", "/")'),
            (TILDE, 'part.replace("~01", "~1").replace("~1", "/").replace("~0", "~")'),
        ],
    ),
    "nestdiff-merge-drops": (
        "nestdiff/merge.py",
        [
            (DROPS, "            if value is not None:\n"),
            (DROPS, '            if value or value in ([], 0, ""):\n'),
            (DROPS, "            if value or isinstance(value, (list, int)):\n"),
            (DROPS, "            if value or key in known:\n"),
        ],
    ),
    "keepcache-keyword-order": (
        "keepcache/memo.py",
        [
            (ORDER, "value = frozenset(value.items())"),
            (ORDER, "value = tuple(sorted(value.values(), key=repr))"),
            (ORDER, "value = tuple(value.items()) if len(value) != 2 else tuple(sorted(value.items()))"),
            (ORDER, "value = tuple(sorted(value.items(), key=lambda item: str(item[1])))"),
        ],
    ),
}
RIGHT = {
    "nestdiff-tilde-keys": (
        "nestdiff/pointer.py",
        [
            (TILDE, 'part.replace("~1", "/").replace("~0", "~")'),
            (TILDE, '__import__("re").sub("~([01])", lambda found: "~/"[int(found[1])], part)'),
            (TILDE, '"~1".join(piece.replace("~0", "~").replace("~1", "/") for piece in part.split("~01"))'),
            (TILDE, '"~".join(piece.replace("~1", "/") for piece in part.split("~0"))'),
        ],
    ),
    "nestdiff-merge-drops": (
        "nestdiff/merge.py",
        [
            (DROPS, "            if value is not ABSENT:\n"),
            (DROPS, "            if not isinstance(value, type(ABSENT)):\n"),
        ],
    ),
    "keepcache-keyword-order": (
        "keepcache/memo.py",
        [
            (ORDER, "value = tuple(sorted(value.items()))"),
            (ORDER, "value = tuple((name, value[name]) for name in sorted(value))"),
            (BIND, "bound = signature.bind(*args, **dict(sorted(kwargs.items())))"),
        ],
    ),
}


@lru_cache
def prepared(name: str):
    return prepare(next(task for task in ready_tasks() if task.task_id == name))


def attempt(name: str, path: str, old: str, new: str) -> Verdict:
    ready = prepared(name)
    with WorkTree(ready.base) as tree:
        text = (tree.root / path).read_text()
        assert text.count(old) == 1
        (tree.root / path).write_text(text.replace(old, new))
        snapshot = tree.snapshot()
    return grade(ready.task, ready.base, snapshot, runtime=ready.runtime)


def each(fixes):
    return [
        pytest.param(name, path, *pair, id=f"{name}-{at}")
        for name, (path, pairs) in fixes.items()
        for at, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize(("name", "path", "old", "new"), each(WRONG))
def test_a_fix_that_only_looks_done(name, path, old, new):
    assert attempt(name, path, old, new).reward == 0.0


@pytest.mark.parametrize(("name", "path", "old", "new"), each(RIGHT))
def test_a_right_fix(name, path, old, new):
    verdict = attempt(name, path, old, new)
    assert (verdict.reward, verdict.reason) == (1.0, None)
