"""The README tells the truth: its tree is the tree, its commands exist, its example prints what it shows."""

import contextlib
import doctest
import io
import os
import re
import subprocess
from pathlib import Path

import pytest

from rtmc.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
# What a checkout gathers and git ignores; read where there is no git to ask.
IGNORED = re.compile(
    r"(^|/)(\.git|\.venv|runs|build|dist|__pycache__|\.[a-z]+_cache|\.hypothesis|[^/]*\.egg-info)(/|$)"
)


def present_files(root: Path) -> set[str]:
    """Every file of the project, links as themselves: what git tracks or would add, else what lies there."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return {name for name in listed if name and os.path.lexists(root / name)}
    found = set()
    for folder, subfolders, files in os.walk(root):
        links = [name for name in subfolders if (Path(folder) / name).is_symlink()]
        paths = {(Path(folder) / name).relative_to(root).as_posix() for name in [*files, *links]}
        found |= {path for path in paths if not IGNORED.search(path)}
    return found


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def tree_lines(block: str) -> dict[str, str]:
    """Path -> caption of the tree: two blanks a level, a folder ends with `/`, the caption after two or more blanks."""
    captions: dict[str, str] = {}
    folders: list[str] = []
    for line in block.splitlines():
        match = re.fullmatch(r"((?:  )*)(\S+)(?:  +(\S.*))?", line)
        assert match, f"this line of the tree is not `name  caption`: {line!r}"
        depth, name = len(match[1]) // 2, match[2]
        assert depth <= len(folders), f"this line of the tree is too deep: {line!r}"
        path = "/".join([*folders[:depth], name.rstrip("/")])
        assert path not in captions, f"the tree has {path} twice"
        captions[path] = match[3] or ""
        folders = [*folders[:depth], name.rstrip("/")] if name.endswith("/") else folders[:depth]
    return captions


def test_the_tree_is_the_tree():
    (block,) = blocks(README, "tree")
    captions = tree_lines(block)
    files = present_files(ROOT)
    folders = {parent.as_posix() for name in files for parent in Path(name).parents} - {"."}
    missing = sorted(files - captions.keys())
    assert not missing, f"README.md's tree lacks a line, with a caption, for: {', '.join(missing)}"
    surplus = sorted(captions.keys() - files - folders)
    assert not surplus, f"README.md's tree has a line for what is not there: {', '.join(surplus)}"
    bare = sorted(name for name in files if not captions[name])
    assert not bare, f"README.md's tree has no caption for: {', '.join(bare)}"


def test_the_tree_comes_last():
    assert README.rstrip().endswith("```")
    assert re.findall(r"^## .*$", README, re.M)[-1] == "## The tree"


def test_a_tree_is_read_as_it_is_drawn():
    drawn = "a/  room\n  b.py  what b is\n  c/\n    d.py  what d is\n  e.py  what e is\nf  what f is\n"
    assert tree_lines(drawn) == {
        "a": "room",
        "a/b.py": "what b is",
        "a/c": "",
        "a/c/d.py": "what d is",
        "a/e.py": "what e is",
        "f": "what f is",
    }
    for wrong in ("    b.py  too deep\n", "a  one\na  two\n", "a one blank\n"):
        with pytest.raises(AssertionError):
            tree_lines(wrong)


def test_without_git_the_same_files_are_found(tmp_path):
    for name in ("kernels/returns.py", ".ci/run", "kernels/__pycache__/x.pyc", ".venv/x", "runs/a/b", ".mypy_cache/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "rtmc").mkdir()
    (tmp_path / "rtmc" / "kernels").symlink_to("../kernels")
    assert present_files(tmp_path) == {"kernels/returns.py", ".ci/run", "rtmc/kernels"}


def commands_of(text: str, program: str) -> set[str]:
    """The word after `program` wherever a command is written: in a block of bash and in single backquotes."""
    written = [line.split("#")[0] for block in blocks(text, "bash") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    written += re.findall(r"`([^`\n]+)`", prose)
    found = (re.match(rf"{program}(?: ([a-z][\w-]*))(?![\w=])", line.strip()) for line in written)
    return {match[1] for match in found if match}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    assert commands_of(PAGES[page], "make") <= make_targets()
    assert commands_of(PAGES[page], "rtmc") <= set(COMMANDS)


def test_the_readme_shows_every_command():
    assert commands_of(README, "rtmc") == set(COMMANDS)
    assert {"demo", "test"} <= commands_of(README, "make")


def test_a_command_is_found_where_it_is_written():
    text = "do `make tea` or\n```bash\nrtmc brew x=1  # rtmc no\n```\nbut not make coffee, nor `METHOD=make x`"
    assert commands_of(text, "make") == {"tea"}
    assert commands_of(text, "rtmc") == {"brew"}


def test_the_example_prints_what_the_readme_shows():
    (code,) = blocks(README, "python")
    (shown,) = blocks(README, "text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown
    # By hand: P = 1/3, two pseudo-visits; room V' = (.99 + 2/3) / 5, door V' = (1 + 2/3) / 4.
    room, door = (0.99 + 2 / 3) / 5, (1 + 2 / 3) / 4
    wanted = [0.495 - room, 1 - door, 0.495 - room, -door, -room]
    assert re.findall(r"rtmc ([+-][\d.]+)", shown) == [f"{value:+.2f}" for value in wanted]


def test_the_household_session_goes_as_shown():
    (session,) = blocks(README, "pycon")
    example = doctest.DocTestParser().get_doctest(session, {}, "README.md", None, 0)
    assert len(example.examples) == 7
    told: list[str] = []
    assert doctest.DocTestRunner().run(example, out=told.append).failed == 0, "".join(told)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    targets = [t for t in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]) if not t.startswith(("http:", "https:"))]
    named = re.findall(
        r"`?\b((?:[\w.-]+/)*[\w-]+\.(?:md|toml|py))\b`?", re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.M | re.S)
    )
    for name in [*targets, *named]:
        if "NAME" not in name and name != "kernels/__init__.py":  # named as what must not exist
            assert (ROOT / name).exists(), f"{page} names {name}, which does not exist"
