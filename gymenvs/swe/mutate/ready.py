"""Writes and checks the shipped tasks: `python -m rtmc.gymenvs.swe.mutate.ready check`.

    check [PACKAGE ...]       run every task's tests with and without its bug, and the examples of its text with it
    unpack PACKAGE FOLDER     write a package's files and its `tasks.json` into a new folder, to be worked on
    pack FOLDER               make the package's file anew from such a folder; failing tests are found by running them

Exit status: 0 = everything is as the files say, 1 = a fault was found, 2 = bad input.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rtmc.gymenvs.sandbox import open_sandbox
from rtmc.gymenvs.swe import treefiles
from rtmc.gymenvs.swe.mutate.issue import gives_away
from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.mutants import Mutant, changed_lines
from rtmc.gymenvs.swe.mutate.readyset import DATA, Planted, ReadyPackage, plant, read_ready, ready_packages
from rtmc.gymenvs.swe.mutate.validate import INSIDE, Bench, make_bench

_EXAMPLES = (
    "import doctest, sys; flags = doctest.IGNORE_EXCEPTION_DETAIL; text = sys.stdin.read();"
    "test = doctest.DocTestParser().get_doctest(text, {}, 'text', None, 0);"
    "runner = doctest.DocTestRunner(optionflags=flags); runner.run(test);"
    "print(runner.tries, 'examples'); sys.exit(runner.failures > 0 or not runner.tries)"
)


def check(package: ReadyPackage, jobs: int = 2, backend: str = "auto", trusted: bool = False) -> list[str]:
    """What is not as the package's file says, a line each; [] = everything is.

    Without a bug, all tests pass and are those that the file lists. With a task's bug, its failing tests fail and all
    others pass; the examples in its text print what the text says; the text names no changed line or file; and the
    tests that stay visible do not fail.
    """
    with treefiles.scratch() as folder, ThreadPoolExecutor(jobs) as pool:
        bench = _bench(package.files, package.name, folder / "tree", backend, trusted)
        found = [pool.submit(_check_clean, bench, package)]
        found += [pool.submit(_check_planted, bench, package, one) for one in package.planted]
        return [f"{package.name}: {fault}" for future in found for fault in future.result()]


def _bench(files: Mapping[str, str], name: str, tree: Path, backend: str = "auto", trusted: bool = False) -> Bench:
    tree.mkdir()
    treefiles.write(tree, files)
    return make_bench(read_package(tree, name), (), backend, trusted, 60.0)


def _check_clean(bench: Bench, package: ReadyPackage) -> list[str]:
    report = bench.run({})
    faults = [
        f"{test} is {result.status} without a bug" for test, result in report.results.items() if not result.passed
    ]
    faults += [f"{test} is listed and did not run" for test in package.tests if test not in report.results]
    faults += [f"{test} ran and is not listed" for test in report.results if test not in set(package.tests)]
    if not report.complete or report.collection_errors:
        faults.append(
            f"the clean run broke off: {report.stopped or dict(report.collection_errors) or report.log[-300:]}"
        )
    return faults


def _check_planted(bench: Bench, package: ReadyPackage, one: Planted) -> list[str]:
    task = one.task
    report = bench.run(_encoded(one.broken))
    wanted = set(task.fail_to_pass)
    failed = {test for test, result in report.results.items() if not result.passed}
    faults = [f"{test} should fail and does not" for test in sorted(wanted - failed)]
    faults += [f"{test} fails and is not listed" for test in sorted(failed - wanted)]
    faults += [f"{test} did not run" for test in package.tests if test not in report.results]
    faults += _check_text(bench, package, one)
    return [f"{task.task_id}: {fault}" for fault in faults]


def _check_text(bench: Bench, package: ReadyPackage, one: Planted) -> Iterator[str]:
    text = one.task.problem_statement
    for path, broken in one.broken.items():
        changed = changed_lines(package.files[path].encode(), broken.encode())
        if gives_away(text, Mutant(path, one.kind, (), broken.encode(), changed)):
            yield f"its text holds a changed line or names {path}"
    with bench.tree(_encoded(one.broken)) as tree:
        runtime = bench.runtime
        with open_sandbox(
            tree,
            inside=INSIDE,
            readable=runtime.readable,
            hidden=runtime.hidden,
            path=runtime.path,
            env={**dict(runtime.env), **bench.env},
            backend=bench.backend,
            trusted=bench.trusted,
        ) as sandbox:
            done = sandbox.run([runtime.python, "-c", _EXAMPLES], stdin=text.encode())
    if done.exit_code != 0:
        yield f"the examples of its text: {done.stdout.strip()}{done.stderr.strip()}"


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def pack(folder: Path, data: Path = DATA) -> Path:
    """Write the file of the package in a folder, with the failing tests of its tasks as they are found. Gives its path.

    Raises:
        ValueError: the package's own tests do not all pass, or a bug makes none of them fail.
    """
    record: dict[str, Any] = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    files = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "tasks.json" and not {"__pycache__", ".pytest_cache"} & set(path.parts)
    }
    with treefiles.scratch() as place:
        bench = _bench(files, record["package"], place / "tree")
        clean = bench.run({})
        bad = [test for test, result in clean.results.items() if not result.passed]
        if bad or not clean.complete or not clean.results:
            raise ValueError(f"{folder}: the tests do not pass without a bug: {bad or clean.log[-500:]}")
        for task in record["tasks"]:
            broken = plant(files, task["edits"], f"{folder}, task {task['task_id']!r}")
            report = bench.run(_encoded(broken))
            task["fail_to_pass"] = [test for test in clean.results if not report.results[test].passed]
            if not task["fail_to_pass"]:
                raise ValueError(f"{folder}, task {task['task_id']!r}: no test notices the bug")
    written = {
        "package": record["package"],
        "about": record["about"],
        "files": {path: text.split("\n") for path, text in files.items()},
        "tests": list(clean.results),
        "tasks": record["tasks"],
    }
    target = data / f"ready_{record['package']}.json"
    target.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


def unpack(name: str, folder: Path, data: Path = DATA) -> None:
    """Write a package's files and its `tasks.json` into a new folder, as `pack` reads them."""
    path = data / f"ready_{name}.json"
    if not path.is_file():
        names = ", ".join(found.stem.removeprefix("ready_") for found in sorted(data.glob("ready_*.json")))
        raise ValueError(f"there is no shipped package {name!r}; there are {names}")
    package = read_ready(path)
    folder.mkdir(parents=True)
    treefiles.write(folder, package.files)
    record = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: record[key] for key in ("package", "about", "tasks")}
    (folder / "tasks.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of this module; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m rtmc.gymenvs.swe.mutate.ready", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("packages", nargs="*")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("package")
    unpacking.add_argument("folder", type=Path)
    commands.add_parser("pack").add_argument("folder", type=Path)
    words = parser.parse_args(argv)
    try:
        if words.command == "unpack":
            unpack(words.package, words.folder)
        elif words.command == "pack":
            print(pack(words.folder))
        else:
            return _check_all(words.packages)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _check_all(names: Sequence[str]) -> int:
    packages = ready_packages()
    unknown = [name for name in names if name not in {package.name for package in packages}]
    if unknown:
        raise ValueError(f"there is no shipped package {unknown[0]!r}")
    faults = 0
    for package in packages:
        if names and package.name not in names:
            continue
        found = check(package)
        faults += len(found)
        print("\n".join(found) if found else f"{package.name}: {len(package.planted)} tasks are as they say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
