"""Names relative to the root, wherever the checkout lies: the same for every root, from what a rollout shows of it."""

import pytest

from tests.swe_replays import FORMATS, call, named_editor, rollout
from tests.test_signatures_swe import NONE, of, told

ROOTS = [
    "/testbed",
    "/home/u/code/proj",
    "/home/u/proj",
    "/root/code/proj",
    "/workspace/org/proj",
    "/workspace/proj",
    "/srv/ci/build/proj",
    "/opt/proj",
    "/tmp/proj",
    "/private/tmp/x/proj",
    "/Users/me/dev/proj",
    "/builds/x/y",
]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(
    "first",
    [
        lambda root: (f"cd {root} && ls", "src"),
        lambda root: ("pwd", root),
        lambda root: ("git rev-parse --show-toplevel", f"{root}\n"),
        lambda root: ("ls", f"src\n[Current working directory: {root}]"),
    ],
    ids=["cd", "pwd", "git", "told"],
)
def test_what_shows_the_root(root, first):
    states, actions = of(first(root), (f"cat {root}/src/a.py", "x"), (f"sed -i s/a/b/ {root}/b.py", ""), hash_chars=0)
    assert actions[1:] == ["view:full@src/a.py", "modify:replace@b.py"]
    assert states[-1].removeprefix(".:S|") == f"b.py:M|src/a.py:Vf|{NONE}"


@pytest.mark.parametrize("root", ROOTS)
def test_one_fix_meets_under_every_root(root):
    assert told(rollout(named_editor(root=root))) == told(rollout(FORMATS["named_editor"]()))


@pytest.mark.parametrize("root", [r for r in ROOTS if not r.startswith(("/opt", "/tmp", "/private"))])
def test_what_the_paths_have_in_common(root):
    states, _ = of((f"cat {root}/src/a.py", "x"), (f"cat {root}/tests/b.py", "x"), ("cat src/a.py", "x"))
    assert states[-1] == f"src/a.py:Vf|tests/b.py:Vf|{NONE}"


def test_a_subfolder_is_not_the_root():
    states, _ = of(
        ("cd /home/u/code/proj && ls", "x"),
        *[(f"cd /home/u/code/proj/src && cat {name}.py", "x") for name in "abc"],
        ("cat /home/u/code/proj/setup.py", "x"),
    )
    assert states[-1] == f".:S|setup.py:Vf|src/a.py:Vf|src/b.py:Vf|src/c.py:Vf|{NONE}"


def test_a_folder_of_the_system_is_no_root():
    states, _ = of(
        ("ls", "src"),
        ("cat src/a.py", "x"),
        ("sed -i s/a/b/ src/a.py", ""),
        ("cat /usr/lib/x.py", "x"),
        ("cd /tmp/env && cat y.py", "x"),
        hash_chars=0,
    )
    assert states[-1] == f".:S|/tmp/env/y.py:Vf|/usr/lib/x.py:Vf|src/a.py:M,Vf|{NONE}"


def test_windows():
    def view(path):
        return call("str_replace_editor", command="view", path=path)

    states, _ = of(
        (view("C:\\Users\\me\\proj\\src\\a.py"), "x"), (view("src\\b.py"), "x"), (view("c:/Users/me/proj/c.py"), "x")
    )
    assert states[-1] == f"c.py:Vf|src/a.py:Vf|src/b.py:Vf|{NONE}"
    assert of(("cat C:\\Users\\me\\proj\\a.py", "x"))[1] == ["view:full@a.py"]


def test_the_name_does_not_depend_on_when_the_root_is_shown():
    early, late = ("cd /opt/proj && ls", "x"), ("cat /opt/proj/a.py", "x")
    assert of(("ls", "x"), late, early)[1][1] == of(early, late)[1][1] == "view:full@a.py"
