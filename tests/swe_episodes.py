"""A small task of SWE and the messages that its tests send."""

from rtmc.gymenvs.swe.actions import ToolCall, write_action
from rtmc.gymenvs.swe.oracle import shell_action
from rtmc.gymenvs.swe.patch import make_patch
from rtmc.gymenvs.swe.task import Embedded, SWETask

BROKEN = '"""Sums."""\n\n\ndef add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n'
MENDED = BROKEN.replace("a - b", "a + b")
HIDDEN = """from calc import add, double


def test_add():
    assert add(2, 3) == 5


def test_double():
    assert double(4) == 8
"""
VISIBLE = "from calc import double\n\n\ndef test_zero():\n    assert double(0) == 0\n"


def calc(**changes):
    values = {
        "task_id": "calc/add",
        "problem_statement": "`add(2, 3)` gives -1 where 5 is expected.",
        "source": Embedded({"calc.py": BROKEN, "tests/test_zero.py": VISIBLE, "README.md": "Sums.\n"}),
        "fail_to_pass": ("tests/test_calc.py::test_add",),
        "pass_to_pass": ("tests/test_calc.py::test_double", "tests/test_zero.py::test_zero"),
        "patch": make_patch({"calc.py": BROKEN}, {"calc.py": MENDED}),
        "test_files": {"tests/test_calc.py": HIDDEN},
    }
    return SWETask(**{**values, **changes})


def edit(env, old, new, path="/testbed/calc.py"):
    call = ToolCall(env.editor, {"command": "str_replace", "path": path, "old_str": old, "new_str": new})
    return env.step(write_action(call, env.syntax))


def view(env, path="/testbed/calc.py", **more):
    return env.step(write_action(ToolCall(env.editor, {"command": "view", "path": path, **more}), env.syntax))


def shell(env, command):
    return env.step(shell_action(command, env.syntax))
