"""What a shell command line does to files: its pipelines, read by `rtmc.signatures.shell`, as effects.

What this is not: no option of any tool is checked; a command nobody knows is `execute` with its name. Each command is
understood once: results are kept for lines of a usual length.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from rtmc.signatures.editors import understood_edit_block, understood_words
from rtmc.signatures.edits import patch_effects
from rtmc.signatures.effects import Effect, Understood
from rtmc.signatures.keys import word_set
from rtmc.signatures.paths import WHOLE
from rtmc.signatures.programs import program_effects, unwrapped
from rtmc.signatures.shell import Command, Pipeline, parse_shell

_FINISH = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_WRITERS = word_set("cat echo printf tee base64")
_READERS = word_set("cat less more nl head tail bat batcat sed awk view od xxd strings tac")
_SEARCHERS = word_set("grep egrep fgrep rg ag ack find fd fdfind ls tree locate zgrep")
_QUIET = word_set(
    "echo printf true false : sleep export set unset source . clear pwd date env printenv which type whoami "
    "hostname alias ulimit wait read exit return conda activate deactivate test [ shopt trap umask history uname id "
    "nproc"
)
_FILTERS = word_set("grep egrep fgrep rg sort uniq wc cut tr column cat less more nl fold paste jq rev comm")
# Kept are lines up to this length; a longer one carries a file, and comes once.
_KEPT = 16_000


def understood_command(text: str) -> Understood:
    """What a command line does, and the folder where the shell stands after it."""
    return _kept(text) if len(text) <= _KEPT else _understood(text)


@lru_cache(maxsize=2048)
def _kept(text: str) -> Understood:
    return _understood(text)


def _understood(text: str, depth: int = 0) -> Understood:
    text = text.strip("\n")
    block = understood_edit_block(text.lstrip())
    if block is not None:
        return block
    reading = _Reading(depth)
    for pipeline in parse_shell(text):
        reading.pipeline(pipeline)
    return reading.understood()


class _Reading:
    """Pipelines in order, the folder they run in, and what they do."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._folders = {0: ""}
        self._scope = 0
        self._effects: list[Effect] = []
        self._window = False
        self._cursors: tuple[int, int] | None = None

    def understood(self) -> Understood:
        return Understood(tuple(self._effects), self._folders[0], self._window, self._cursors)

    def pipeline(self, commands: Pipeline) -> None:
        self._scope = commands[0].scope
        self._folders.setdefault(self._scope, self._folders[0])
        stage: list[Effect] = []
        for place, command in enumerate(commands):
            words = unwrapped(command.words)
            if place and words and words[0] in _FILTERS | {"head", "tail", "sed", "awk", "tee", "xargs"}:
                stage = self._filtered(stage, words, command)
            else:
                text = commands[place - 1].text if place and command.text is None else command.text
                if place and text is None and commands[place - 1].words[:1] in (["echo"], ["printf"]):
                    text = " ".join(commands[place - 1].words[1:]) + "\n"
                if place and commands[place - 1].words[:1] in (["cat"], ["echo"], ["printf"]) and text is not None:
                    stage = []  # it only fed this command
                stage += self._command(words, command, text)
            stage += self._outputs(command, words, commands, place)
        self._effects += stage

    def _command(self, words: list[str], command: Command, text: str | None) -> list[Effect]:
        if not words:
            return []
        name = words[0].rpartition("/")[2]
        if name in ("cd", "pushd"):
            target = next((w for w in words[1:] if not w.startswith("-") or w == "-"), "")
            if target and target[0] not in "-~$`":
                self._folders[self._scope] = posixpath.join(self._folders[self._scope], target)
            return [Effect("execute", self._folders[self._scope], "cd", aside=True, shell=True)]
        editor = understood_words(words, command.text)
        if editor is not None:
            self._window |= editor.window
            self._cursors = editor.cursors or self._cursors
            return self._placed(editor.effects)
        inner = _inner_script(name, words)
        if inner is not None and self._depth < 3:
            found = _understood(inner, self._depth + 1)
            return self._placed(found.effects)
        return self._placed(_effects_of(name, words, text, command))

    def _placed(self, effects: Iterable[Effect]) -> list[Effect]:
        """Effects with their paths as seen from where the line started."""
        folder = self._folders[self._scope]
        if not folder:
            return list(effects)

        def at(path: str) -> str:
            return posixpath.join(folder, path)

        return [
            replace(e, path=None if e.path is None else at(e.path), target=at(e.target) if e.target else "")
            for e in effects
        ]

    def _filtered(self, stage: list[Effect], words: list[str], command: Command) -> list[Effect]:
        """The effects so far, seen through a filter: a view cut to lines, a view searched, text written by tee."""
        name = words[0]
        if name == "tee":
            return stage
        if name == "xargs":
            rest = unwrapped([w for w in words[1:] if not w.startswith("-")])
            path = stage[-1].path if stage else ""
            done = _effects_of(rest[0], rest, None, Command(rest)) if rest else []
            done = [replace(e, path=e.path or path) for e in done]
            searching = all(e.category in ("search", "view") for e in done)
            return stage if searching and stage else done
        if name == "sed" and any(w.startswith("-i") for w in words):
            return stage + self._placed(_effects_of(name, words, None, command))
        views = [e for e in stage if e.category == "view"]
        if len(views) != 1 or len(stage) != 1:
            return stage
        view = views[0]
        if name in ("grep", "egrep", "fgrep", "rg"):
            term = next((w for w in words[1:] if not w.startswith("-")), "")
            return [Effect("search", view.path, term=term, shell=True)]
        lines = _lines(name, words)[0] if name in ("head", "tail", "sed", "awk") else None
        if lines is None or view.scope not in ("full", "partial"):
            return stage
        return [replace(view, scope="partial", lines=_within(view.lines, lines))]

    def _outputs(self, command: Command, words: list[str], commands: Pipeline, place: int) -> list[Effect]:
        """Files written by redirects and by tee; the text is known where the line spells it."""
        writes = list(command.writes)
        if words[:1] == ["tee"]:
            appended = "-a" in words or "--append" in words
            writes += [(w, appended) for w in words[1:] if not w.startswith("-") and not w.startswith("/dev/")]
        if not writes:
            return []
        source = commands[0] if words[:1] == ["tee"] and command.text is None else command
        head = unwrapped(source.words)[:1]
        spelled = not head or head[0] in _WRITERS
        text = source.text
        if text is None and head and head[0] in ("echo", "printf"):
            text = " ".join(w for w in unwrapped(source.words)[1:] if w not in ("-n", "-e", "-en", "-ne"))
            text = text.replace("\\n", "\n") if "-e" in source.words or head[0] == "printf" else text
        if text is None and not head:
            text = ""
        found = [
            Effect("modify", path, "insert", new=text, shell=True, aside=not spelled)
            if appended
            else Effect("create", path, "overwrite", new=text, shell=True, aside=not spelled)
            for path, appended in writes
        ]
        return self._placed(found)


def _inner_script(name: str, words: list[str]) -> str | None:
    """The script of `bash -c '...'` and `eval ...`."""
    if name in ("bash", "sh", "zsh", "dash"):
        for place, word in enumerate(words[1:-1], 1):
            if re.fullmatch(r"-[a-z]*c", word):
                return words[place + 1]
    return " ".join(words[1:]) if name == "eval" and len(words) > 1 else None


def _effects_of(name: str, words: list[str], text: str | None, command: Command) -> list[Effect]:
    """The effects of one simple command, `words` without wrappers."""
    name = name.rpartition("/")[2]
    plain = [w for w in words[1:] if not w.startswith("-")]
    if name == "echo" and any(_FINISH in w for w in words[1:]):
        return [Effect("finish")]
    if name in ("sed", "perl") and any(re.match(r"-[a-zA-Z]*i|--in-place", w) for w in words[1:]):
        return _in_place(name, words)
    if name in _WRITERS and (command.writes or text is not None) and name != "cat":
        return [Effect("execute", "", name, aside=True, shell=True)]
    if name == "cat" and (text is not None or (command.writes and not plain)):
        return [Effect("execute", "", name, aside=True, shell=True)] if not command.writes else []
    if name in _READERS:
        return _read(name, words, command)
    if name in _SEARCHERS:
        return _searched(name, words)
    if name in ("touch", "mktemp"):
        return [Effect("create", path, "touch", new="", shell=True) for path in plain]
    if name == "mkdir":
        return [Effect("fileop", path, "mkdir", shell=True) for path in plain]
    if name in ("rm", "rmdir", "unlink", "shred"):
        return [Effect("fileop", path, "delete", shell=True) for path in plain]
    if name in ("mv", "cp", "ln", "install", "rsync") and len(plain) > 1:
        *sources, target = plain
        scope = "move" if name == "mv" else "copy"
        return [Effect("fileop", path, scope, target=target, shell=True) for path in sources]
    if name in ("chmod", "chown", "truncate"):
        return [Effect("fileop", path, "mode", shell=True) for path in plain[1:]]
    if name == "git":
        return _git(words, text)
    if name == "patch":
        patched = patch_effects(text or "")
        return patched or [Effect("modify", plain[0] if plain else "", "patch", new=text, shell=True)]
    if name == "apply_patch":
        patched = patch_effects(text or " ".join(plain))
        return patched or [Effect("modify", "", "patch", new=text, shell=True)]
    if name in ("diff", "cmp", "wc", "file", "stat", "du", "md5sum", "sha256sum"):
        return [Effect("view", path, name, shell=True) for path in plain[:2]]
    if name in _QUIET:
        return [Effect("execute", "", name, aside=True, shell=True)]
    return program_effects(name, words, text)


def _read(name: str, words: list[str], command: Command) -> list[Effect]:
    lines, paths = _lines(name, words)
    paths = paths or ([command.reads] if command.reads else [])
    if name == "awk" and lines is None:
        return [Effect("search", path, shell=True) for path in paths]
    if lines is None:
        return [Effect("view", path, "full", shell=True) for path in paths]
    return [Effect("view", path, "partial", lines=lines, shell=True) for path in paths]


def _lines(name: str, words: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
    """The lines that a reader lets through (None = all), and its files."""
    rest = words[1:]
    if name in ("head", "tail"):
        count, paths, at = "10", [], 0
        while at < len(rest):
            word = rest[at]
            if word in ("-n", "--lines", "-c") and at + 1 < len(rest):
                at += 1
                count = rest[at]
            elif re.match(r"--lines=|-n[+-]?\d|-\d", word):
                count = re.sub(r"^(?:--lines=|-n|-(?=\d))", "", word)
            elif not word.startswith("-"):
                paths.append(word)
            at += 1
        number = _digits(count.lstrip("+-"))
        if number is None:
            return None, paths
        if name == "head":
            return ((1, -1 - number) if count.startswith("-") else (1, number)), paths
        return ((number, -1) if count.startswith("+") else (-number, -1)), paths
    if name == "sed":
        return _sed_lines(rest)
    if name == "awk":
        programme = next((w for w in rest if not w.startswith("-")), "")
        paths = [w for w in rest if not w.startswith("-")][1:]
        numbers = re.findall(r"NR\s*(>=|<=|==|>|<)\s*(\d{1,9})", programme)
        if not numbers:
            return None, paths
        low = [int(n) + (sign == ">") for sign, n in numbers if sign in (">", ">=", "==")]
        high = [int(n) - (sign == "<") for sign, n in numbers if sign in ("<", "<=", "==")]
        return (max(low, default=1), min(high, default=-1)), paths
    return None, [w for w in rest if not w.startswith("-")]


def _sed_lines(rest: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
    programmes, paths, at = [], [], 0
    while at < len(rest):
        word = rest[at]
        if re.fullmatch(r"-[nrEsuz]*e|--expression", word) and at + 1 < len(rest):
            at += 1
            programmes.append(rest[at])
        elif not word.startswith("-"):
            paths.append(word)
        at += 1
    if not programmes and paths:
        programmes.append(paths.pop(0))
    spans = [
        (int(m[1]), -1 if m[2] == "$" else int(m[2] or m[1]))
        for programme in programmes
        for m in re.finditer(r"(?:^|[;{\s])(\d{1,9})(?:,(\d{1,9}|\$))?\s*p", programme)
    ]
    if not spans:
        return None, paths
    return (min(low for low, _ in spans), -1 if any(h < 0 for _, h in spans) else max(h for _, h in spans)), paths


def _within(outer: tuple[int, int] | None, inner: tuple[int, int]) -> tuple[int, int]:
    """Lines `inner` of the lines `outer` of a file: `head -60 f | tail -20` is lines 41 to 60."""
    if outer is None or outer[0] < 1:
        return inner if outer is None else outer
    first = outer[0]
    low, high = inner
    if low < 0:
        return outer if outer[1] < 0 else (max(first, outer[1] + low + 1), outer[1])
    high = outer[1] if high < 0 else first + high - 1 if outer[1] < 0 else min(outer[1], first + high - 1)
    return first + low - 1, high


def _digits(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.A) else None


def _in_place(name: str, words: list[str]) -> list[Effect]:
    programmes, paths, at = [], [], 1
    while at < len(words):
        word = words[at]
        if re.fullmatch(r"-[a-zA-Z]*e|--expression", word) and at + 1 < len(words):
            at += 1
            programmes.append(words[at])
        elif not word.startswith("-"):
            paths.append(word)
        at += 1
    if not programmes and paths:
        programmes.append(paths.pop(0))
    programme = "\n".join(programmes) if name == "sed" else f"perl {programmes}"
    return [Effect("modify", path, "sed", new=programme, shell=True) for path in paths or [""]]


def _searched(name: str, words: list[str]) -> list[Effect]:
    plain = [w for w in words[1:] if not w.startswith("-")]
    if name in ("ls", "tree"):
        return [Effect("search", path, shell=True) for path in plain or [""]]
    if name in ("find", "fd", "fdfind", "locate"):
        if name != "find":
            term, roots = (plain[0] if plain else ""), plain[1:2] or [""]
        else:
            stop = next((i for i, w in enumerate(words) if i and w[:1] in "-(!\\"), len(words))
            roots = words[1:stop] or [""]
            term = next((words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-name", "-iname", "-path")), "")
            if "-delete" in words:
                return [Effect("fileop", root, "delete", shell=True) for root in roots]
            run = next((i for i, w in enumerate(words) if w in ("-exec", "-execdir")), None)
            done = _effects_of(words[run + 1], words[run + 1 :], None, Command([])) if run and words[run + 1 :] else []
            strong = [replace(e, path=roots[0]) for e in done if e.category in ("modify", "create", "fileop")]
            if strong:
                return strong
        return [Effect("search", root, term=term, shell=True) for root in roots]
    values = frozenset(
        ("-A", "-B", "-C", "-m", "--include", "--exclude", "--exclude-dir", "-g", "-t", "--type", "--glob")
    )
    terms, rest, at = [], [], 1
    while at < len(words):
        word = words[at]
        if word in ("-e", "-f", "--regexp") and at + 1 < len(words):
            at += 1
            terms.append(words[at])
        elif word in values and at + 1 < len(words):
            at += 1
        elif not word.startswith("-"):
            rest.append(word)
        at += 1
    if not terms and rest:
        terms.append(rest.pop(0))
    return [Effect("search", path, term="|".join(terms), shell=True) for path in rest or [""]]


def _git(words: list[str], text: str | None) -> list[Effect]:
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in ("-C", "-c") else rest[1:]
    verb = rest[0] if rest else ""
    plain = [w for w in rest[1:] if not w.startswith("-")]
    after = rest[rest.index("--") + 1 :] if "--" in rest else None
    if verb == "apply" or (verb == "am" and text):
        patched = [] if text is None else patch_effects(text)
        return patched or [Effect("modify", plain[0] if plain else "", "patch", new=text, shell=True)]
    if verb == "restore" or (verb == "checkout" and (after is not None or plain == ["."] or _is_file(plain))):
        paths = after if after is not None else plain
        return [Effect("fileop", path, "revert", shell=True) for path in paths or [""]]
    if (verb == "reset" and "--hard" in rest) or (verb == "stash" and plain[:1] in ([], ["push"], ["save"])):
        return [Effect("fileop", WHOLE, "revert", shell=True)]
    if verb == "stash" and plain[:1] in (["pop"], ["apply"]):
        return [Effect("fileop", WHOLE, "unrevert", shell=True)]
    if verb == "clean":
        return [Effect("fileop", plain[0] if plain else "", "clean", shell=True)]
    if verb == "rm":
        return [Effect("fileop", path, "delete", shell=True) for path in plain]
    if verb == "mv" and len(plain) > 1:
        return [Effect("fileop", path, "move", target=plain[-1], shell=True) for path in plain[:-1]]
    if verb == "grep":
        return _searched("grep", ["grep", *rest[1:]])
    if verb in (
        "diff",
        "show",
        "log",
        "blame",
        "status",
        "branch",
        "rev-parse",
        "ls-files",
        "remote",
        "describe",
        "tag",
    ):
        paths = after if after else [p for p in plain if _is_file([p])]
        return [Effect("view", path, f"git-{verb}", shell=True) for path in paths[:1] or [WHOLE]]
    return [
        Effect("execute", WHOLE, f"git-{verb}"[:30] if verb else "git", aside=verb in ("add", "config"), shell=True)
    ]


def _is_file(words: list[str]) -> bool:
    """`git checkout f.py` names a file, `git checkout main` a branch."""
    return bool(words) and all(re.search(r"\.\w{1,5}$", w) and ".." not in w for w in words)
