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
from itertools import pairwise

from rtmc.signatures.editors import understood_edit_block, understood_words
from rtmc.signatures.edits import patch_effects, patched_by, reversed_effects
from rtmc.signatures.effects import Effect, Understood, Unit
from rtmc.signatures.gitcommands import git_effects
from rtmc.signatures.inplace import edited_in_place
from rtmc.signatures.keys import word_set
from rtmc.signatures.printed import printed
from rtmc.signatures.programs import program_effects, source_of, unwrapped
from rtmc.signatures.readers import SOME, prints_lines, read_effects, searched, shown, within
from rtmc.signatures.rewrites import joined, rewriting
from rtmc.signatures.shell import Command, Pipeline, parse_shell

_FINISH = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_WRITERS = word_set("cat echo printf tee base64")
_READERS = word_set("cat less more nl head tail bat batcat sed awk gawk mawk view od xxd strings tac")
_SEARCHERS = word_set("grep egrep fgrep rg ag ack find fd fdfind ls dir tree locate zgrep")
_QUIET = word_set(
    "echo printf true false : sleep export set unset source . clear pwd date env printenv which type whoami "
    "hostname alias ulimit wait read exit return activate deactivate test [ shopt trap umask history uname id "
    "nproc popd dirs"
)
_FILTERS = word_set("grep egrep fgrep rg sort uniq wc cut tr column cat less more nl fold paste jq rev comm")
_CUTTERS = word_set("head tail sed awk gawk mawk")
# What these print is text made of a file's, so that a file written with it is a changed copy; what others print into a
# file is a log of what they did.
_COPIERS = word_set("cat sed awk gawk mawk perl head tail tac nl sort uniq cut tr fold paste rev iconv jq base64")
# Options of xargs whose value is the next word.
_XARGS = ("-n", "-P", "-L", "-I", "-i", "-d", "-a", "-s", "-E")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
# Kept are lines up to this length; a longer one carries a file, and comes once.
_KEPT = 16_000


def understood_command(text: str, failed: frozenset[int] = frozenset()) -> Understood:
    """What a command line does, and the folder where the shell stands after it.

    failed   places of those of its units that are a `cd` which did not succeed, and so left the shell where it was
    """
    return _kept(text, failed) if len(text) <= _KEPT else _understood(text, failed)


@lru_cache(maxsize=2048)
def _kept(text: str, failed: frozenset[int]) -> Understood:
    return _understood(text, failed)


def _understood(text: str, failed: frozenset[int], depth: int = 0) -> Understood:
    text = text.strip("\n")
    block = understood_edit_block(text.lstrip())
    if block is not None:
        return block
    reading = _Reading(failed, depth)
    for pipeline in parse_shell(text):
        reading.pipeline(pipeline)
    return reading.understood()


class _Reading:
    """Pipelines in order, the folder they run in, and what they do."""

    def __init__(self, failed: frozenset[int], depth: int) -> None:
        self._failed = failed
        self._depth = depth
        self._folders = {0: ""}
        self._scope = 0
        self._effects: list[Effect] = []
        self._units: list[Unit] = []
        self._places: dict[int, int] = {}  # id of a pipeline's first command -> its unit
        self._strict = False  # `set -e`: every command holds back the next
        self._window = False
        self._cursors: tuple[int, int] | None = None
        self._left: list[str] = []  # folders that `pushd` left
        self._made: dict[str, Effect] = {}  # file -> the change of another one that it holds

    def understood(self) -> Understood:
        effects = joined(self._effects, self._made) if self._made else self._effects
        gone = {e.path for e in effects if e.category == "fileop" and e.scope in ("move", "delete")}
        passing = [e.category == "create" and e.new is None and e.path in gone for e in effects]
        effects = [replace(e, aside=True) if passes else e for e, passes in zip(effects, passing, strict=True)]
        return Understood(tuple(effects), self._folders[0], self._window, self._cursors, tuple(self._units))

    def pipeline(self, commands: Pipeline) -> None:
        first = commands[0]
        self._scope = first.scope
        self._folders.setdefault(self._scope, self._folders[0])
        unit = len(self._units)
        self._places[id(first)] = unit
        self._units.append(self._unit(commands))
        stage: list[Effect] = []
        for place, command in enumerate(commands):
            words = unwrapped(command.words)
            before = commands[place - 1] if place else None
            fed = None if before is None else printed(before)
            if before is not None and words and words[0] in _FILTERS | _CUTTERS | {"tee", "xargs"}:
                stage = self._filtered(stage, words, command, fed)
            else:
                text = fed if command.text is None else command.text
                reads = command.reads
                if before is not None and before.words[:1] == ["cat"] and len(before.words) == 2 and text is None:
                    reads = reads or before.words[1]
                if before is not None and (text is not None or reads) and before.words[:1] in _FEEDERS:
                    stage = []  # it only fed this command
                stage += self._command(words, replace(command, reads=reads), text, unit)
            written = self._outputs(command, words, commands, place)
            change = rewriting(words, stage) if len(written) == 1 and written[0].new is None else None
            if change is not None and written[0].path:
                self._made[written[0].path] = change
            stage += written
        for effect in stage:
            # A name that the line does not spell may be any file.
            unknown = effect.path is not None and _VARIABLE.fullmatch(effect.path)
            effect = replace(effect, path="") if unknown else effect
            self._effects.append(effect if effect.unit >= 0 else replace(effect, unit=unit))

    def _unit(self, commands: Pipeline) -> Unit:
        first = commands[0]
        named = [unwrapped(command.words) for command in commands]
        names = [words[0].rpartition("/")[2] for words in named if words]
        join = "&&" if self._strict and first.join == ";" and self._units else first.join
        if first.words[:1] == ["set"] and any(re.fullmatch(r"-[a-z]*e[a-z]*|errexit", w) for w in first.words[1:]):
            self._strict = True
        texts = [c.text for c in commands]
        sources = (source_of(words, text is not None) for words, text in zip(named, texts, strict=True) if words)
        return Unit(
            tuple(names),
            join,
            -1 if first.leader is None else self._places.get(id(first.leader), -1),
            first.negated,
            len(commands) > 1 and bool(names) and names[-1] in _FILTERS | _CUTTERS | {"tee"},
            frozenset().union(*(command.hides for command in commands)),
            next(filter(None, sources), ""),
        )

    def _command(self, words: list[str], command: Command, text: str | None, unit: int) -> list[Effect]:
        if not words:
            return []
        name = words[0].rpartition("/")[2]
        if name == "popd" and self._left and unit not in self._failed:
            self._folders[self._scope] = self._left.pop()
        if name in ("cd", "pushd"):
            target = next((w for w in words[1:] if not w.startswith("-") or w == "-"), "")
            folder = posixpath.join(self._folders[self._scope], target)
            if target and target[0] not in "-~$`":
                self._units[unit] = replace(self._units[unit], folder=folder)
                if unit not in self._failed:
                    self._left += [self._folders[self._scope]] if name == "pushd" else []
                    self._folders[self._scope] = folder
            return [Effect("execute", folder if target[:1] != "-" else "", "cd", aside=True, shell=True)]
        editor = understood_words(words, command.text)
        if editor is not None:
            self._window |= editor.window
            self._cursors = editor.cursors or self._cursors
            return self._placed(editor.effects)
        inner = _inner_script(name, words)
        if inner is not None and self._depth < 3:
            return self._placed(self._inner(inner, unit))
        return self._placed(_effects_of(name, words, text, command))

    def _inner(self, script: str, unit: int) -> list[Effect]:
        """The effects of the script that a shell runs, whose units follow on the shell's own."""
        offset = len(self._units)
        failed = frozenset(place - offset for place in self._failed if place >= offset)
        found = _understood(script, failed, self._depth + 1)
        for one in found.units:
            leader = one.leader + offset if one.leader >= 0 else unit if one.join == ";" else -1
            self._units.append(replace(one, leader=leader))
        return [replace(e, unit=e.unit + offset) if e.unit >= 0 else e for e in found.effects]

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

    def _filtered(self, stage: list[Effect], words: list[str], command: Command, fed: str | None) -> list[Effect]:
        """The effects so far, seen through a filter: a view cut to lines, a view searched, text written by tee."""
        name = words[0]
        if name == "tee":
            return stage
        if name == "xargs":
            if fed is not None:
                return self._placed(_of_xargs(words, fed.split()))
            done = self._placed(_of_xargs(words, []))
            done = [replace(e, path=stage[-1].path if stage else "") for e in done]
            looking = bool(stage) and all(e.category in ("search", "view") for e in done)
            return stage if looking and not stage[-1].scope.startswith("git-") else done
        if name in ("sed", "perl") and edited_in_place(name, words):
            return stage + self._placed(_effects_of(name, words, None, command))
        views = [e for e in stage if e.category == "view"]
        if len(views) != 1 or len(stage) != 1:
            return stage
        view = views[0]
        if name in ("grep", "egrep", "fgrep", "rg"):
            term = next((w for w in words[1:] if not w.startswith("-")), "")
            return [Effect("search", view.path, term=term, shell=True)]
        lines = shown(name, words)[0] if name in _CUTTERS else None
        if lines is None or view.scope not in ("full", "partial"):
            return stage
        kept = within(view.lines, lines)
        return [replace(view, scope="some" if kept == SOME else "partial", lines=None if kept == SOME else kept)]

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
        text = printed(source)
        if text is None and not head:
            text = ""
        copied = bool(head) and head[0].rpartition("/")[2] in _COPIERS
        found = []
        for path, appended in writes:
            aside = not spelled and not (copied and not path.startswith(_SCRATCH))
            category, scope = ("modify", "insert") if appended else ("create", "overwrite")
            found.append(Effect(category, path, scope, new=text, shell=True, aside=aside))
        return self._placed(found)


_SCRATCH = ("/tmp/", "/var/tmp/", "/dev/")
# Commands that only feed what stands behind a bar.
_FEEDERS = (["cat"], ["echo"], ["printf"])


def _of_xargs(words: list[str], given: list[str]) -> list[Effect]:
    """The effects of the command that xargs runs, on the words `given` to it (none = not known)."""
    rest, marks = words[1:], ["{}"]
    while rest and rest[0].startswith("-"):
        if rest[0] in _XARGS and len(rest) > 1:
            marks = [rest[1]] if rest[0] == "-I" else marks
            rest = rest[1:]
        rest = rest[1:]
    rest = unwrapped(rest)
    if not rest:
        return []
    filled = [w for word in rest for w in (given or ["."] if word in marks else [word])]
    if filled == rest:
        filled = [*rest, *(given or ["."])]
    return _effects_of(filled[0], filled, None, Command(filled))


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
    edited = edited_in_place(name, words, text)
    if edited:
        return edited
    if name == "xargs":
        return _of_xargs(words, [])
    if name in _WRITERS and (command.writes or text is not None) and name != "cat":
        return [Effect("execute", "", name, aside=True, shell=True)]
    if name == "cat" and (text is not None or (command.writes and not plain)):
        return [Effect("execute", "", name, aside=True, shell=True)] if not command.writes else []
    if name in _READERS or (name == "perl" and prints_lines(words)):
        return read_effects(name, words, command)
    if name == "find":
        return _found(words)
    if name in _SEARCHERS:
        return searched(name, words)
    if name in ("touch", "mktemp"):
        return [Effect("create", path, "touch", new="", shell=True) for path in plain]
    if name == "mkdir":
        return [Effect("fileop", path, "mkdir", shell=True) for path in plain]
    if name in ("rm", "rmdir", "unlink", "shred"):
        return [Effect("fileop", path, "delete", shell=True) for path in plain]
    if name in ("mv", "cp", "ln", "install", "rsync") and len(plain) > 1:
        *sources, target = _moved(name, words) or plain
        scope = "move" if name == "mv" else "copy"
        return [Effect("fileop", path, scope, target=target, shell=True) for path in sources]
    if name in ("chmod", "chown", "truncate"):
        aside = name != "truncate"  # who may read or run a file says little of a step
        return [Effect("fileop", path, "mode", shell=True, aside=aside) for path in plain[1:]]
    if name == "git":
        return git_effects(words, text, command.reads)
    if name == "patch":
        return _patched(words, plain, text, command.reads)
    if name == "apply_patch":
        patched = patch_effects(text or " ".join(plain))
        return patched or [Effect("modify", "", "patch", new=text, shell=True)]
    if name in ("diff", "cmp", "wc", "file", "stat", "du", "md5sum", "sha256sum"):
        return [Effect("view", path, name, shell=True) for path in plain[:2]]
    quiet = name in _QUIET and "/" not in words[0]
    if quiet or (name in ("conda", "mamba") and plain[:1] in (["activate"], ["deactivate"], ["info"], ["list"])):
        return [Effect("execute", "", name, aside=True, shell=True)]
    return program_effects(name, words, text, command.reads)


def _found(words: list[str]) -> list[Effect]:
    """`find`, and what it does to what it finds."""
    looked = searched("find", words)
    name = looked[0].term
    one = posixpath.join(looked[0].path or "", name) if name and not re.search(r"[*?\[/]", name) else None
    if "-delete" in words:
        return [replace(e, category="fileop", scope="delete", term="", path=one or e.path) for e in looked]
    run = next((i for i, w in enumerate(words) if w in ("-exec", "-execdir", "-ok")), None)
    rest = words[run + 1 :] if run else []
    done = _effects_of(rest[0], rest, None, Command([])) if rest else []
    strong = [replace(e, path=one or looked[0].path) for e in done if e.category in ("modify", "create", "fileop")]
    return strong[:1] or looked


def _moved(name: str, words: list[str]) -> list[str]:
    """Sources and target of mv, cp, ln, install, rsync."""
    valued = {"install": ("-m", "-o", "-g", "--mode"), "rsync": ("-e", "--exclude", "--include")}.get(name, ())
    plain: list[str] = []
    target = ""
    for before, word in pairwise(words):
        if before in ("-t", "--target-directory"):
            target = word.rstrip("/") + "/"
        elif not word.startswith("-") and before not in valued:
            plain.append(word)
    return [*plain, target] if target else plain


def _patched(words: list[str], plain: list[str], text: str | None, reads: str | None) -> list[Effect]:
    """`patch`: the files of its patch, where the line spells it."""
    source = next((words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-i", "--input")), reads)
    source = next((w.partition("=")[2] for w in words if w.startswith("--input=")), source)
    if any(w in ("--dry-run", "-C", "--check") for w in words):
        return [Effect("execute", source or "", "patch-check", shell=True)]
    valued = ("-i", "--input", "-d", "-p", "-o", "-F", "-B", "-r")
    named = [w for before, w in pairwise(words) if w in plain and before not in valued]
    patched = patch_effects(text or "")
    reverse = any(w in ("-R", "--reverse") for w in words)
    if patched and reverse:
        patched = reversed_effects(patched)
    if patched:
        return patched
    found = patched_by(source or next(iter(named[1:]), ""), text, reverse)
    return [replace(found[0], path=named[0])] if named else found  # `patch FILE [PATCH]`
