"""Programs that a command runs: test runners, interpreters, installers; and the wrappers before them.

What this is not: whether a run passed is read from the answer, by `rtmc.signatures.answers`.
"""

from __future__ import annotations

import posixpath
import re

from rtmc.signatures.asking import only_asks
from rtmc.signatures.effects import Effect
from rtmc.signatures.keys import word_set
from rtmc.signatures.scripts import python_effects, python_views

_RUNNERS = word_set("pytest py.test nosetests nose2 tox nox ctest trial unittest jest mocha vitest phpunit rspec")
_INSTALLERS = word_set(
    "pip pip3 pip2 conda mamba apt apt-get yum dnf apk brew pipx easy_install poetry uv npm yarn pnpm"
)
_BUILDERS = word_set(
    "make npm yarn pnpm cargo go mvn gradle gradlew dotnet just rake bazel hatch pdm poetry rye uv pipenv invoke nx"
)
_RUN_BY = word_set("poetry uv pipenv pdm hatch rye")
# What a project calls its own script that runs the tests, as in `hatch run test`.
_TEST_SCRIPT = re.compile(r"(?:[\w.-]+:)?(?:unit)?-?(?:tests?|check|pytest|verify|cov)(?:[:.-]\w+)?")
# Options of test runners whose value is the next word.
_VALUED = word_set(
    "-k -m -p -c -n -o -W -e --tb --maxfail --rootdir --settings --parallel --timeout --durations --pattern -s -t"
)
# With one of these an installer installs nothing.
_DRY = word_set("--dry-run --simulate --help -h --version")
_INTERPRETERS = re.compile(r"(?:i?python|pypy)[\d.]*|node|ruby|perl|php|Rscript|bash|sh|zsh|dash")
# Modules that run the script they are given.
_WATCHERS = word_set(
    "pdb ipdb cProfile profile trace memory_profiler line_profiler kernprof viztracer scalene tracemalloc"
)
_TEST_PROGRAM = re.compile(r"(?:run[_-]?)?tests?(?:\.sh)?")
_TEST_FILE = re.compile(r"(?:test_.*|.*_tests?|tests?|runtests|conftest)\.(?:py|js|ts|rb|go)")


def unwrapped(words: list[str]) -> list[str]:
    """The command without what only wraps it: `sudo`, `timeout 60`, `env X=1`, `time`, `uv run`, `conda run -n e`..."""
    for _ in range(8):
        if not words:
            return words
        name = words[0].rpartition("/")[2]
        if name in (
            "sudo",
            "time",
            "nohup",
            "command",
            "exec",
            "stdbuf",
            "nice",
            "ionice",
            "builtin",
            "unbuffer",
            "xvfb-run",
        ):
            words = _past_options(words[1:], ("-n", "-u", "-c"))
        elif name == "timeout":
            words = _past_options(words[1:], ("-s", "-k", "--signal"))[1:]
        elif name == "env" and len(words) > 1:
            rest = _past_options(words[1:], ("-u",))
            while rest and re.match(r"\w+=", rest[0]):
                rest = rest[1:]
            if not rest:
                return words
            words = rest
        elif name in _RUN_BY and words[1:2] == ["run"]:
            rest = _past_options(words[2:], ("--with", "-p", "--python", "--extra", "--group"))
            if rest and rest[0] != "pytest" and _TEST_SCRIPT.fullmatch(rest[0]):
                return words
            words = rest
        elif name in ("docker", "podman", "docker-compose") and any(w in ("exec", "run") for w in words[1:3]):
            rest = words[2:] if words[1] in ("exec", "run") else words[3:]
            words = _past_options(rest, ("-w", "-u", "-e", "-v", "--workdir", "--user", "--env", "--volume", "--name"))[
                1:
            ]
        elif name in ("conda", "mamba", "micromamba") and words[1:2] == ["run"]:
            words = _past_options(words[2:], ("-n", "-p", "--name"))
        elif name == "coverage" and words[1:2] == ["run"]:
            rest = _past_options(words[2:], ("--source", "--omit"))
            words = ["python", *rest] if "-m" not in words else ["python", *words[words.index("-m") :]]
        else:
            return words
    return words


def _past_options(words: list[str], valued: tuple[str, ...]) -> list[str]:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in valued else words[1:]
    return words


def program_effects(name: str, words: list[str], text: str | None, reads: str | None = None) -> list[Effect]:
    """Effects of a program: a test run, an installation, a script, or `execute` with its name. `text` is what its
    standard input holds, `reads` the file that it comes from."""
    plain = [w for w in words[1:] if not w.startswith("-")]
    if name in _RUNNERS:
        return [_test(name, words[1:], module=name in ("trial", "unittest"))]
    if name in _INSTALLERS:
        verb = plain[0] if plain else ""
        if name == "uv" and verb == "pip":
            words = [w for w in words if w != "pip"]
            verb = plain[1] if len(plain) > 1 else ""
        if (
            verb in ("install", "add", "sync", "i", "ci", "uninstall", "remove", "update", "upgrade")
            or name == "easy_install"
        ):
            dry = any(word in _DRY for word in words[1:])
            return [Effect("execute", "", name, shell=True) if dry else _installed(words)]
    if name in _BUILDERS:
        pairs = zip(words[1:], words, strict=False)
        built = _built(name, [w for w, before in pairs if before != "-C" and not w.startswith("-")])
        told = name in ("make", "just", "rake") or any(e.category != "execute" for e in built)
        return [Effect("execute", "", f"{name}-dry", shell=True)] if told and only_asks(name, words[1:]) else built
    if name in ("manage.py", "runtests.py", "setup.py") or _TEST_FILE.fullmatch(name):
        return _script(words[0], words[1:])
    if _INTERPRETERS.fullmatch(name):
        return _interpreted(name, words, text, reads)
    if "/" in words[0] or re.fullmatch(r"[\w.-]+\.(?:py|sh)", name):
        return _script(words[0], words[1:])
    if "=" in words[0]:
        return [Effect("execute", "", "assign", aside=True, shell=True)]
    return [Effect("execute", "", re.sub(r"[^\w.+-]", "_", name)[:40], shell=True)]


def source_of(words: list[str], fed: bool) -> str:
    """What a traceback calls the program that a command runs: the script's path, "<string>" for `-c`, "<stdin>" for
    what is `fed` to the interpreter; "" for any other command."""
    name = words[0].rpartition("/")[2]
    if not name.startswith(("python", "pypy")):
        return words[0] if name.endswith(".py") else ""
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        if rest[0] in ("-c", "-m"):
            return "<string>" if rest[0] == "-c" else ""
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if rest and rest[0] != "-":
        return rest[0]
    return "<stdin>" if fed else ""


def _interpreted(name: str, words: list[str], text: str | None, reads: str | None) -> list[Effect]:
    """`python script`, `python -m module`, `python -c code`, `python - <<EOF`."""
    python = name.startswith(("python", "ipython", "pypy"))
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest[0]
        if option == "-m" and len(rest) > 1:
            return _module(rest[1], rest[2:])
        if (option == "-c" or re.fullmatch(r"-[a-zA-Z0-9]*e", option)) and len(rest) > 1:
            return _code(name, rest[1], python)
        rest = rest[2:] if option in ("-W", "-X") else rest[1:]
    if rest and rest[0] != "-":
        return _script(rest[0], rest[1:])
    if text is not None:
        return _code(name, text, python)
    return _script(reads, []) if reads else [Effect("execute", "", name, shell=True)]


def _code(name: str, code: str, python: bool) -> list[Effect]:
    scope = "python" if python else name
    written = python_effects(code) or python_views(code) if python else []
    if re.search(r"\bpytest\.main\(|\bunittest\.main\(", code):
        return [*written, Effect("test", "", new=code, shell=True)]
    return [*written, Effect("execute", "", scope, new=code, shell=True, aside=bool(written))]


def _module(module: str, rest: list[str]) -> list[Effect]:
    if module in ("pytest", "py.test", "nose", "nose2", "tox", "nox"):
        return [_test(module, rest)]
    if module in ("unittest", "doctest", "twisted.trial", "django"):
        return [_test(module.rpartition(".")[2], rest, module=module != "doctest")]
    if module in ("pip", "pip3", "ensurepip"):
        install = next((w for w in rest if not w.startswith("-")), "") in ("install", "uninstall")
        install = install and not any(word in _DRY for word in rest)
        return [_installed([module, *rest]) if install else Effect("execute", "", "pip", shell=True)]
    if module in _WATCHERS:
        script = _past_options(rest, ("-c", "-o", "-s", "-n", "-r", "-m"))
        return _script(script[0], script[1:]) if script else [Effect("execute", "", module, shell=True)]
    if module in ("py_compile", "compileall", "flake8", "pyflakes", "pylint", "mypy", "ruff", "black", "isort"):
        path = next((w for w in rest if not w.startswith("-")), "")
        return [Effect("execute", path, module, shell=True)]
    return [Effect("execute", "", re.sub(r"[^\w.]", "_", module)[:40], shell=True)]


def _script(path: str, rest: list[str]) -> list[Effect]:
    name = posixpath.basename(path)
    if name == "setup.py" and rest[:1] in (["install"], ["develop"], ["build_ext"]):
        return [Effect("install", "", shell=True)]
    if name in ("manage.py", "runtests.py", "setup.py"):
        if name == "runtests.py" or rest[:1] == ["test"]:
            found = _test(name, rest[1:] if rest[:1] == ["test"] else rest, module=True)
            return [found if found.path or found.category != "test" else Effect("test", path, shell=True)]
        return [Effect("execute", path, shell=True)]
    if _TEST_FILE.fullmatch(name) or _TEST_PROGRAM.fullmatch(name):
        return [_ASKED if only_asks(name, rest) else Effect("test", path, shell=True)]
    return [Effect("execute", path, shell=True)]


_ASKED = Effect("execute", "", "test-runner", shell=True)


def _test(name: str, rest: list[str], module: bool = False) -> Effect:
    """A test run; its target is the first file or folder named, without `::names`. With `module`, dotted names are
    modules (`tests.test_a.Case.test_b`). Where the runner is only asked something, no test."""
    target, term, verb, at = "", "", "", 0
    while at < len(rest):
        word = rest[at]
        if word in _VALUED and at + 1 < len(rest):
            if word == "-k":
                term = rest[at + 1]
            at += 1
        elif not word.startswith("-"):
            verb = verb or word
            if not target and word not in ("discover", "run", "test"):
                target = word
        at += 1
    if only_asks(name, rest, verb):
        return _ASKED
    path, _, names = target.partition("::")
    if module and path and "/" not in path and not path.endswith(".py"):
        path = _module_path(path)
    return Effect("test", path, term=names or term, shell=True)


def _module_path(dotted: str) -> str:
    """`tests.test_a.Case.test_b` -> `tests/test_a.py`; a name that shows no module is a folder of tests."""
    parts = dotted.split(".")
    for place, part in enumerate(parts):
        if part.startswith("test_") or part.endswith(("_test", "_tests")):
            return "/".join(parts[: place + 1]) + ".py"
    return "/".join(part for part in parts if not part[:1].isupper())


def _installed(words: list[str]) -> Effect:
    rest, at = [], 1
    while at < len(words):
        if words[at] in ("-r", "-c", "-n", "--requirement", "-i", "--index-url", "-t"):
            at += 1
        elif not words[at].startswith("-"):
            rest.append(words[at])
        at += 1
    package = rest[1] if len(rest) > 1 else ""
    return Effect("install", re.split(r"[<>=!~\[;]", package)[0], shell=True)


def _built(name: str, plain: list[str]) -> list[Effect]:
    verb = plain[0] if plain else ""
    if verb in ("run", "exec") and len(plain) > 1:
        verb = plain[1]
    if re.match(r"(?:unit)?-?(?:tests?|check|pytest|verify)\b", verb) or (
        name in _RUN_BY and _TEST_SCRIPT.fullmatch(verb)
    ):
        return [Effect("test", "", shell=True)]
    if verb in ("install", "add", "get", "i", "ci"):
        return [Effect("install", "", shell=True)]
    return [Effect("execute", "", re.sub(r"[^\w.-]", "_", f"{name}-{verb}" if verb else name)[:40], shell=True)]
