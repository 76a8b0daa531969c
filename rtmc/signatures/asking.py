"""Test runners and builders that are asked something, or told to run nothing: `pytest --collect-only`, `make -n test`.

What this is not: options of a project's own programs are not known, beside `--help` and `--version`; what is not named
here runs.
Source: the manuals of the programs named.
"""

from __future__ import annotations

import re

from rtmc.signatures.keys import word_set

# These mean the same wherever they are known.
_EVERYWHERE = word_set(
    "--version --help -h --collect-only --collectonly --co --fixtures --fixtures-per-test --funcargs --markers "
    "--setup-plan --cache-show --listenvs --listenvs-all --showconfig --notest --list --list-sessions --list-tests "
    "--list-files --listTests --showConfig --show-only --no-run --nobuild --dry-run --just-print --recon --question "
    "--touch --tasks -DskipTests"
)
_PYTEST = re.compile(r"-V")
# What else asks one program, and runs or means another thing with the next.
_BY_NAME = {
    "pytest": _PYTEST,
    "py.test": _PYTEST,
    "nosetests": _PYTEST,
    "mocha": _PYTEST,
    "tox": re.compile(r"-v*[la][lav]*"),
    "nox": re.compile(r"-l"),
    "ctest": re.compile(r"-N"),
    "trial": re.compile(r"-n"),
    "rspec": re.compile(r"-v"),
    "go": re.compile(r"-{1,2}list(?:=.*)?|-[cn]"),
    "gradle": re.compile(r"-m"),
    "gradlew": re.compile(r"-m"),
    "dotnet": re.compile(r"-t"),
    # Short options stand together; those with a value (-C, -f, -j, ...) are none of these letters.
    "make": re.compile(r"-[BbdeikLmprRsSw]*[nqtvh][BbdeikLmprRsSwnqtvh]*"),
    "just": re.compile(r"-[nl]"),
    "rake": re.compile(r"-[nTP]"),
    "invoke": re.compile(r"-l"),
}
_VERBS = {
    "tox": word_set("list l config c depends de devenv d quickstart q"),
    "vitest": word_set("list"),
}


def only_asks(name: str, rest: list[str], verb: str = "") -> bool:
    """Whether a runner or a builder with the arguments `rest` runs nothing; `verb` = the first that is no option."""
    # What stands behind `--` is for the program that it starts: `tox -- -l` has pytest show local variables.
    before = rest[: rest.index("--")] if "--" in rest else rest
    own = _BY_NAME.get(name)
    return (
        any(word in _EVERYWHERE for word in rest)
        or (verb in before and verb in _VERBS.get(name, ()))
        or (own is not None and any(own.fullmatch(word) for word in before))
    )
