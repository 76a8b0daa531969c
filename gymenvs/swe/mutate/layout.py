"""Which files of a package's source are its code and which are its tests.

Told by the usual names alone, no build file is read: tests are `test_*.py`, `*_test.py` and `tests.py`; code is every
other module that is no script of the build, the documentation or the examples, and no helper in a folder called
`test`, `tests` or `testing`. With a folder `src/` only what lies below it is code.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rtmc.gymenvs.swe.mutate.text import Source

_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|tests\.py")
_TEST_FOLDERS = {"test", "tests", "testing"}
_OTHER_FOLDERS = {"doc", "docs", "example", "examples", "bench", "benchmarks", "scripts", "tools", "build", "dist"}
_OTHER_FOLDERS |= {"site-packages", "node_modules", "venv", "env", "__pycache__", "vendor", "_vendor", "vendored"}
_OTHER_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py", "versioneer.py", "_version.py"}
_OTHER_FILES |= {"version.py.in", "__version__.py", "__main__.py"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package's source in a folder.

    name, version: "" = a local folder without one. root: the folder. modules: its code. tests: files that hold tests.
    left_out: modules that cannot be read or are no UTF-8. digest: of all these files' names and bytes.
    """

    name: str
    version: str
    root: Path
    modules: tuple[Source, ...]
    tests: tuple[str, ...]
    left_out: tuple[str, ...]
    digest: str

    @property
    def title(self) -> str:
        return f"{self.name}-{self.version}" if self.version else self.name

    @property
    def code_lines(self) -> int:
        return sum(source.utf8.count(b"\n") for source in self.modules)


def read_package(root: Path, name: str, version: str = "", where: str = "") -> Package:
    """The package in a folder; `where`: what messages call that, "" = the folder itself.

    Raises:
        ValueError: it has no code that could be mutated, or no tests.
    """
    where = where or f"the folder {str(root)!r}"
    found = list(_python_files(root))
    tests = tuple(path for path in found if _is_test(path))
    code = [path for path in found if not _is_test(path) and not _is_other(path)]
    if any(path.startswith("src/") for path in code):
        code = [path for path in code if path.startswith("src/")]
    elif any("/" in path for path in code):
        # Modules at the top beside a package are scripts; a folder without `__init__.py` is no package.
        tops = {path.split("/")[0] for path in code if (root / path.split("/")[0] / "__init__.py").is_file()}
        code = [path for path in code if path.split("/")[0] in tops] or code
    modules, left_out, faults = [], [], []
    for path in code:
        try:
            source = Source((root / path).read_bytes(), path)
        except ValueError as error:
            left_out.append(path)
            faults.append(str(error))
            continue
        if source.encoding in ("utf-8", "utf-8-sig"):
            modules.append(source)
        else:  # the patch of a task is text in UTF-8
            left_out.append(path)
            faults.append(f"{path}: its encoding is {source.encoding}, and only UTF-8 is mutated")
    if faults and not modules:
        raise ValueError(f"{name}: of {len(faults)} modules in {where} none can be mutated: {faults[0]}")
    if not modules:
        raise ValueError(f"{name}: there is no Python module to mutate in {where}")
    if not tests:
        raise ValueError(
            f"{name}: there are no tests in {where} (test_*.py, *_test.py, tests.py); "
            "without them no bug can be told from none"
        )
    return Package(name, version, root, tuple(modules), tests, tuple(left_out), _digest(root, found))


def _python_files(root: Path) -> list[str]:
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and not name.endswith(".egg-info")
        )
        inner = Path(folder).relative_to(root)
        found += [(inner / name).as_posix() for name in sorted(files) if name.endswith(".py")]
    return sorted(path for path in found if not (root / path).is_symlink())


def _is_test(path: str) -> bool:
    *folders, name = path.split("/")
    if set(folders) & _OTHER_FOLDERS:
        return False
    return bool(_TEST_FILE.fullmatch(name)) and name != "conftest.py"


def _is_other(path: str) -> bool:
    *folders, name = path.split("/")
    return name in _OTHER_FILES or bool(set(folders) & (_OTHER_FOLDERS | _TEST_FOLDERS))


def _digest(root: Path, paths: list[str]) -> str:
    summed = hashlib.sha256()
    for path in paths:
        summed.update(f"{path}\0".encode() + hashlib.sha256((root / path).read_bytes()).digest())
    return summed.hexdigest()
