"""The house: which room imports which, how the rooms are linked into one package, how long a file may be.

Each rule is a function over a tree, run on this repository and, to show that it can fail, on a small tree
with the fault planted in it.
"""

import ast
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKS = {"kernels": "../kernels", "gymenvs": "../gymenvs", "train": "../train"}
# Of our rooms, each may import itself and these; `rtmc` stands for the folder rtmc/ without its links.
MAY_IMPORT = {
    "kernels": set(),
    "gymenvs": set(),
    "rtmc": {"kernels"},
    "train": {"rtmc", "kernels"},
}
# The command line alone reaches up, and only inside a function: `import rtmc.cli` loads no other room.
REACHES_UP = {"rtmc/cli": {"train", "gymenvs"}}
MAX_LINES = 450


def modules(root: Path, room: str) -> list[Path]:
    """The .py files of a room, links not followed."""
    found = []
    for folder, subfolders, files in os.walk(root / room):
        subfolders[:] = [d for d in subfolders if not (Path(folder) / d).is_symlink() and d != "__pycache__"]
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    return sorted(found)


def imports(file: Path, module: str) -> list[tuple[int, str, bool]]:
    """(line, full dotted name, inside a function) of every import, relative ones resolved.

    Counted too: the text given to `import_module` or `__import__`.
    """
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
                parents = package[: len(package) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            found.extend((node.lineno, f"{base}.{alias.name}", lazy) for alias in node.names)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0] if node.args else None
            text = first.value if isinstance(first, ast.Constant) else None
            if name in ("import_module", "__import__") and isinstance(text, str):
                found.append((node.lineno, text, lazy))
        inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(file.read_text(encoding="utf-8")), False)
    return found


def room_of(name: str) -> str | None:
    """The room a dotted name lies in; a top-level `kernels` counts as the room it would shadow."""
    parts = name.split(".")
    if parts[0] == "rtmc":
        return parts[1] if len(parts) > 1 and parts[1] in LINKS else "rtmc"
    return parts[0] if parts[0] in LINKS else None


def upward_imports(root: Path) -> list[str]:
    """Every import that breaks the table of rooms, as `file:line: what`."""
    faults = []
    for room, allowed in MAY_IMPORT.items():
        for file in modules(root, room):
            path = file.relative_to(root).as_posix()
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            module = module if room == "rtmc" else f"rtmc.{module}"
            lazily = next((up for start, up in REACHES_UP.items() if path.startswith(f"{start}/")), set())
            for line, name, lazy in imports(file, module):
                target = room_of(name)
                if name.split(".")[0] in LINKS:
                    faults.append(f"{path}:{line}: imports {name}: write rtmc.{name}")
                elif target not in {None, room, *allowed} and not (lazy and target in lazily):
                    when = " inside a function" if target in lazily else ""
                    faults.append(
                        f"{path}:{line}: {room} imports {name}, of the room {target}{when and ', not' + when}"
                    )
    return faults


def test_rooms_import_downwards():
    assert upward_imports(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("kernels/x.py", "from rtmc.errors import TableError", "kernels/x.py:1: kernels imports rtmc.errors"),
        ("kernels/x.py", "import rtmc", "kernels/x.py:1: kernels imports rtmc"),
        ("kernels/x.py", "from kernels.y import z", "kernels/x.py:1: imports kernels.y.z"),
        (
            "gymenvs/x.py",
            "def f():\n    import rtmc.kernels.y",
            "gymenvs/x.py:2: gymenvs imports rtmc.kernels.y",
        ),
        ("rtmc/x.py", "import rtmc.gymenvs", "rtmc/x.py:1: rtmc imports rtmc.gymenvs"),
        ("rtmc/x.py", "from .train import run", "rtmc/x.py:1: rtmc imports rtmc.train.run"),
        ("rtmc/a/x.py", "from ..train.run import y", "rtmc/a/x.py:1: rtmc imports rtmc.train.run.y"),
        ("rtmc/cli/x.py", "import rtmc.train.run", "rtmc/cli/x.py:1: rtmc imports rtmc.train.run"),
        (
            "train/x.py",
            "import importlib\nimportlib.import_module('rtmc.gymenvs')",
            "train/x.py:2: train imports",
        ),
    ],
)
def test_an_upward_import_is_found(tmp_path, path, source, fault):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    found = upward_imports(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/x.py", "from rtmc.kernels.y import z\nfrom .y import z\nimport torch"),
        ("rtmc/cli/x.py", "def f():\n    from rtmc.train.run import y"),
        ("train/x.py", "from rtmc.kernels.y import z\nimport rtmc"),
    ],
)
def test_a_downward_import_is_not(tmp_path, path, source):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert upward_imports(tmp_path) == []


def test_kernels_has_no_init():
    # With one, a folder `kernels` on sys.path is taken for Hugging Face's package of that name.
    assert (ROOT / "kernels").is_dir()
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize(("name", "target"), LINKS.items())
def test_links_point_to_the_rooms(name, target):
    link = ROOT / "rtmc" / name
    assert link.is_symlink(), f"{link} is no link: is git's core.symlinks off?"
    assert os.readlink(link) == target
    assert link.resolve() == ROOT / name


def test_links_are_recorded_as_links():
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout: nothing is recorded")
    command = ["git", "ls-files", "-s", *(f"rtmc/{name}" for name in LINKS)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modes = {line.split("\t")[1]: line.split(" ")[0] for line in listed.splitlines()}
    assert modes == {f"rtmc/{name}": "120000" for name in LINKS}


def long_files(root: Path, rooms: tuple[str, ...]) -> list[str]:
    counted = ((file, len(file.read_text(encoding="utf-8").splitlines())) for r in rooms for file in modules(root, r))
    return [f"{file.relative_to(root)}: {lines} lines" for file, lines in counted if lines > MAX_LINES]


def test_no_file_holds_two_rooms():
    assert long_files(ROOT, (*MAY_IMPORT, "tests", "bench")) == []


def test_a_long_file_is_found(tmp_path):
    (tmp_path / "rtmc").mkdir()
    (tmp_path / "rtmc" / "long.py").write_text("x = 1\n" * (MAX_LINES + 1))
    (tmp_path / "rtmc" / "short.py").write_text("x = 1\n" * MAX_LINES)
    assert long_files(tmp_path, ("rtmc",)) == [f"rtmc/long.py: {MAX_LINES + 1} lines"]


def misordered(source: str) -> list[str]:
    """What breaks the order of an op's file: docstring, `_*_reference`, `_*_kernel`, `_*_numba`, public op.

    An op's file is one that calls `register_op`; its kernel or its numba loop may stand in a file of their own.
    """
    tree = ast.parse(source)
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    if not any(isinstance(call, ast.Name) and call.id == "register_op" for call in calls):
        return []
    lines: dict[str, list[int]] = {"reference": [], "kernel": [], "numba": [], "public op": []}
    exported: set[object] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            exported = set(ast.literal_eval(node.value))
        if isinstance(node, ast.FunctionDef):
            kind = node.name.rsplit("_", 1)[-1]
            if node.name.startswith("_") and kind in lines:
                lines[kind].append(node.lineno)
            elif node.name in exported:
                lines["public op"].append(node.lineno)
    faults = [] if ast.get_docstring(tree) else ["no module docstring"]
    faults += [f"no {kind}" for kind in ("reference", "public op") if not lines[kind]]
    # Helpers may be shared across sections, so each section is placed by its first function, the op by its last.
    order = [min(found) if kind != "public op" else max(found) for kind, found in lines.items() if found]
    if order != sorted(order):
        faults.append(f"the sections do not stand in the order {', '.join(lines)}")
    return faults


def test_op_files_are_read_downwards():
    sources = {file.name: file.read_text(encoding="utf-8") for file in modules(ROOT, "kernels")}
    faults = {name: misordered(source) for name, source in sources.items()}
    assert {name: found for name, found in faults.items() if found} == {}
    assert {"returns.py", "ids.py", "segments.py", "rollout_tree.py", "broadcast.py"} <= set(sources)


def test_a_misordered_op_file_is_found():
    parts = [
        '"""Doc."""',
        "__all__ = ['x']",
        "def _x_reference(): pass",
        "def _x_kernel(): pass",
        "def _x_numba(): pass",
        "_op = register_op('x')",
        "def x(): pass",
    ]

    def check(*order: int) -> list[str]:
        return misordered("\n".join(parts[at] for at in order))

    wrong = "the sections do not stand in the order reference, kernel, numba, public op"
    assert check(0, 1, 2, 3, 4, 5, 6) == []
    assert check(0, 1, 2, 4, 5, 6) == []
    assert check(1, 2, 3, 4, 5, 6) == ["no module docstring"]
    assert check(0, 1, 3, 4, 5, 6) == ["no reference"]
    assert check(0, 1, 2, 3, 4, 5) == ["no public op"]
    assert check(0, 1, 3, 2, 4, 5, 6) == [wrong]
    assert check(0, 1, 2, 4, 3, 5, 6) == [wrong]
    assert check(0, 1, 2, 3, 6, 5, 4) == [wrong]
    assert check(1, 3) == []  # registers no op
