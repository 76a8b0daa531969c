"""A task of one module, whose tests compare what it gives."""

import re

from rtmc.gymenvs.swe.grading import grade
from rtmc.gymenvs.swe.task import Embedded, SWETask
from rtmc.gymenvs.swe.tree import WorkTree
from tests.swe_grading_case import runtime, write


def graded(folder, tests, now, before="", name="kit.py"):
    """The verdict on an agent that makes `before` of a module into `now`."""
    base = {name: before, "README.md": "A kit.\n", "test_there.py": "def test_there():\n    assert 1 == 1\n"}
    write(folder / "base", base)
    found = re.findall(r"^(?:class (\w+)|( *)def (test_\w+))", tests, re.M)
    ids, last = [], ""
    for kind, indented, test in found:
        last = kind or last
        if test:
            ids.append(f"test_kit.py::{last + '::' if indented else ''}{test}")
    task = SWETask(
        task_id="kit-1",
        problem_statement="The kit is wrong.",
        source=Embedded(base),
        fail_to_pass=tuple(ids),
        pass_to_pass=("test_there.py::test_there",),
        test_files={"test_kit.py": tests},
        hidden_files=("test_kit.py",),
        timeout_s=60.0,
    )
    with WorkTree(folder / "base") as tree:
        write(tree.root, {name: now})
        snapshot = tree.snapshot()
    return grade(task, folder / "base", snapshot, runtime=runtime())
