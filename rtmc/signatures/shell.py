"""Shell command lines as pipelines of simple commands, read with tree-sitter's grammar of bash.

What this is not: nothing is run, expanded or looked up. Words are unquoted, variables that the line itself sets are
filled in, and everything else (globs, substitutions, arithmetic) stays as it is written. A line that is no valid
bash gives the commands that the grammar can still find; it never raises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Deeper nesting than any command line has; a line built to be deep must not exhaust the stack.
_MAX_DEPTH = 60
# A longer command carries a file in a heredoc or between quotes: its middle is told by a hash.
_MAX_BYTES = 64_000
# No command has such lines, but text pasted without a line's end has, and the parser's time grows with its square.
_LONG_BYTES, _LONG_LINE = 16_000, 4_000
# What is still read of a text that is no bash.
_FIRST_BYTES = 2_000
_MAX_PIPELINES = 500
_MAX_ROUNDS = 50
# A name as Windows has it, whose backslashes escape nothing.
_DRIVE = re.compile(r"[A-Za-z]:\\\w")


@dataclass(slots=True)
class Command:
    """One simple command.

    words       the command's name and arguments, unquoted; empty for a bare redirect
    writes      (path, appended) of each redirect of standard output (or of both streams) into a file
    reads       path that standard input comes from, or None
    text        body of a heredoc or here-string, or None
    scope       number of the subshell the command stands in, 0 = the shell itself
    hides       streams ("1", "2") whose text goes into a file and so not into the answer
    join        what stands before the command: "&&" or "||", or ";" where nothing holds it back
    leader      first command of the group (`{ ...; }`, the body of a condition) that the command stands in; it runs
                only if that one does
    negated     `!` stands before the command
    """

    words: list[str]
    writes: list[tuple[str, bool]] = field(default_factory=list)
    reads: str | None = None
    text: str | None = None
    scope: int = 0
    hides: set[str] = field(default_factory=set)
    join: str = ";"
    leader: Command | None = None
    negated: bool = False


Pipeline = list[Command]


def parse_shell(text: str) -> list[Pipeline]:
    """The pipelines of a command line or script, in order: both sides of `&&` and `||`, the bodies of conditions, the
    bodies of loops once for each word that the loop spells. How the first command of each hangs on those before it is
    told by its `join` and `leader`.

    Raises ImportError naming the extra to install where tree-sitter or its bash grammar is missing.
    """
    source = text.encode("utf-8", "replace")
    if len(source) > _MAX_BYTES:
        half = _MAX_BYTES // 2
        middle = hashlib.sha256(source[half:-half]).hexdigest().encode()
        source = source[:half] + b"\n" + middle + b"\n" + source[-half:]
    if len(source) > _LONG_BYTES and max(map(len, source.split(b"\n"))) > _LONG_LINE:
        source = source[:_LONG_BYTES]
    root = _tree(source)
    if root is None:
        source = source[:_FIRST_BYTES]
        root = _tree(source)
    return [] if root is None else list(islice(_Walk(source).pipelines(root, 0, 0), _MAX_PIPELINES))


def _tree(source: bytes) -> Node | None:
    """The syntax tree's root; None where the parser needs many more steps than a command line of this length does (it
    searches for the best reading of a text that is no bash)."""
    left = 200 + len(source) // 60

    def too_long(*_: object) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    parser = _parser()
    try:
        # The count of steps, unlike the time they take, is the same in every run.
        tree = parser.parse(lambda at, _: source[at : at + 65_536], progress_callback=too_long)
    except ValueError:
        parser.reset()
        return None
    return tree.root_node


@lru_cache(maxsize=1)
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise ImportError(
            f"the signature `swe` reads shell commands with tree-sitter, and {error.name} is not installed; "
            "pip install 'rtmc[report]'"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class _Walk:
    """One pass over a tree; remembers the variables the line sets."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._variables: dict[str, str] = {}
        self._subshells = 0

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def pipelines(self, node: Node, scope: int, depth: int) -> Iterator[Pipeline]:
        """Pipelines below `node`, in the order they are written."""
        if depth > _MAX_DEPTH:
            return
        kind = node.type
        if kind == "command":
            yield [self._command(node, scope)]
        elif kind == "pipeline":
            yield from self._pipeline(node, scope, depth)
        elif kind == "redirected_statement":
            yield from self._redirected(node, scope, depth)
        elif kind == "list":
            # `a && b && c` nests to the left, as deep as it is long.
            parts: list[tuple[str, Node]] = []
            while node.type == "list" and node.named_child_count:
                sign = next((c.type for c in node.children if c.type in ("&&", "||")), ";")
                parts += [(sign, part) for part in reversed(node.named_children[1:])]
                node = node.named_children[0]
            for sign, part in [(";", node), *reversed(parts)]:
                yield from _joined(sign, self.pipelines(part, scope, depth + 1))
        elif kind == "variable_assignment":
            self._assign(node)
        elif kind == "for_statement":
            yield from self._loop(node, scope, depth)
        elif kind == "if_statement":
            sign = ";"
            for child in node.children:
                if child.type == "then":
                    sign = "&&"
                elif child.is_named:
                    yield from _joined(sign, self.pipelines(child, scope, depth + 1))
                    sign = ";"
        elif kind == "negated_command":
            for child in node.named_children:
                for pipeline in self.pipelines(child, scope, depth + 1):
                    pipeline[0].negated = True
                    yield pipeline
        elif kind == "subshell":
            self._subshells += 1
            inner = self._subshells
            for child in node.named_children:
                yield from self.pipelines(child, inner, depth + 1)
        elif kind not in ("function_definition", "comment", "test_command", "word", "heredoc_body"):
            for child in node.named_children:
                yield from self.pipelines(child, scope, depth + 1)

    def _loop(self, node: Node, scope: int, depth: int) -> Iterator[Pipeline]:
        """`for f in a b; do ...`: the body, once for each word."""
        name = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if name is None or body is None:
            return
        values = node.children_by_field_name("value")[:_MAX_ROUNDS]
        for value in values:
            self._variables[self._text(name)] = self._word(value, 0)
            yield from self.pipelines(body, scope, depth + 1)
        if not values:
            yield from self.pipelines(body, scope, depth + 1)

    def _pipeline(self, node: Node, scope: int, depth: int) -> Iterator[Pipeline]:
        joined: Pipeline = []
        for child in node.named_children:
            # The grammar lets a list stand before the first bar; only its last command is piped on.
            *before, last = list(self.pipelines(child, scope, depth + 1)) or [[]]
            yield from before
            joined += last
        if joined:
            yield joined

    def _redirected(self, node: Node, scope: int, depth: int) -> Iterator[Pipeline]:
        found: list[Pipeline] = []
        redirects = []
        for child in node.named_children:
            if child.type.endswith("_redirect"):
                redirects.append(child)
            else:
                found += self.pipelines(child, scope, depth + 1)
        if not found:
            found = [[Command([], scope=scope)]]
        after: list[Pipeline] = []
        for redirect in redirects:
            # A heredoc belongs to the first command of the pipeline it is written after, an output to the last.
            first, last = found[-1][0], found[-1][-1]
            if redirect.type == "heredoc_redirect":
                after += self._heredoc(redirect, last if len(found[-1]) == 1 else first, found, scope, depth)
            elif redirect.type == "herestring_redirect":
                words = [self._word(child, 0) for child in redirect.named_children]
                first.text = (words[-1] if words else "") + "\n"
            else:
                self._file_redirect(redirect, last)
        yield from found
        yield from after

    def _heredoc(
        self, node: Node, command: Command, found: list[Pipeline], scope: int, depth: int
    ) -> Iterator[Pipeline]:
        """The heredoc's body for `command`; what the grammar hangs under it (`<<EOF && next`, `<<EOF | next`,
        `<<EOF > file`) is put where it belongs."""
        following: list[Pipeline] = []
        sign = ";"
        for child in node.children:
            if child.type in ("&&", "||"):
                sign = child.type
            elif not child.is_named:
                continue
            elif child.type == "heredoc_body":
                command.text = self._body(child)
            elif child.type == "file_redirect":
                self._file_redirect(child, command)
            elif child.type == "pipeline":
                for piped in self.pipelines(child, scope, depth + 1):
                    found[-1] += piped
            elif child.type in ("heredoc_start", "heredoc_end", "file_descriptor"):
                continue
            elif child.type in ("word", "string", "raw_string", "concatenation", "number"):
                command.words.append(self._word(child, depth))
            else:
                following += _joined(sign, self.pipelines(child, scope, depth + 1))
        if command.text is None:
            command.text = ""
        yield from following

    def _body(self, node: Node) -> str:
        """A heredoc's text; the grammar leaves out the white space it starts with."""
        start = node.start_byte
        while start and self._source[start - 1] in b" \t\n":
            start -= 1
        before = self._source[start : node.start_byte].decode().partition("\n")[2]
        return before + self._text(node)

    def _file_redirect(self, node: Node, command: Command) -> None:
        operator = next((c.type for c in node.children if not c.is_named), ">")
        descriptor = next((self._text(c) for c in node.named_children if c.type == "file_descriptor"), "")
        targets = [c for c in node.named_children if c.type != "file_descriptor"]
        if not targets:
            return
        path = self._word(targets[0], 0)
        if operator in (">&", "&>", "&>>") and path in ("1", "2") and descriptor != path:
            command.hides |= {descriptor or "1"} if path in command.hides else set()
        elif not operator.startswith("<"):
            command.hides |= {"1", "2"} if operator.startswith("&") else {descriptor or "1"}
        # The grammar gives arguments that follow a redirect to the redirect.
        command.words += [self._word(c, 0) for c in targets[1:]]
        if operator.startswith("<"):
            command.reads = path
        elif descriptor in ("", "1") and operator in (">", ">>", "&>", "&>>", ">|") and not path.startswith("/dev/"):
            command.writes.append((path, operator.endswith(">>")))

    def _command(self, node: Node, scope: int) -> Command:
        command = Command([], scope=scope)
        for child in node.named_children:
            if child.type == "variable_assignment":
                continue  # holds for this one command
            if child.type == "file_redirect":
                self._file_redirect(child, command)
            elif child.type == "herestring_redirect":
                command.text = "".join(self._word(c, 0) for c in child.named_children) + "\n"
            elif child.type == "heredoc_redirect":
                list(self._heredoc(child, command, [[command]], scope, 0))
            else:
                command.words.append(self._word(child, 0))
        return command

    def _assign(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if name is not None and value is not None and len(self._variables) < 100:
            self._variables[self._text(name)] = self._word(value, 0)

    def _word(self, node: Node, depth: int) -> str:
        """The word as the shell would pass it on, as far as the line tells."""
        kind = node.type
        if depth > _MAX_DEPTH:
            return self._text(node)
        if kind == "raw_string":
            return self._text(node)[1:-1]
        if kind == "ansi_c_string":
            return _ansi(self._text(node)[2:-1])
        if kind == "string":
            return self._string(node, depth)
        if kind in ("concatenation", "command_name"):
            return "".join(self._word(child, depth + 1) for child in node.children)
        if kind in ("simple_expansion", "expansion"):
            written = self._text(node)
            return self._variables.get(written.strip("${}"), written)
        if kind == "command_substitution":
            return self._listed(node, depth)
        text = self._text(node)
        if kind != "word" or "\\" not in text or _DRIVE.match(text):
            return text
        return re.sub(r"\\(.)", r"\1", text, flags=re.S)

    def _listed(self, node: Node, depth: int) -> str:
        """`$(grep -rl x src)`, `$(git ls-files)`, `$(find src ...)` as the place they look in; else as written."""
        inner = next((c for c in node.named_children if c.type == "command"), None)
        words = [] if inner is None else [self._word(c, depth + 1) for c in inner.named_children]
        plain = [w for w in words[1:] if not w.startswith("-")]
        if words[:1] in (["grep"], ["rg"], ["egrep"]) and any(re.match(r"-\w*l|--files", w) for w in words):
            return plain[1] if len(plain) > 1 else "."
        if words[:1] == ["find"]:
            return plain[0] if plain and words[1] == plain[0] else "."
        return "." if words[:2] == ["git", "ls-files"] else self._text(node)

    def _string(self, node: Node, depth: int) -> str:
        # White space between the parts of a string belongs to no node, so the text is cut by the expansions.
        parts, at, end = [], node.start_byte + 1, node.end_byte - 1
        for child in node.named_children:
            if child.type in ("simple_expansion", "expansion"):
                parts.append(_unescape(self._source[at : child.start_byte].decode("utf-8", "replace")))
                parts.append(self._word(child, depth + 1))
                at = child.end_byte
        parts.append(_unescape(self._source[at:end].decode("utf-8", "replace")))
        return "".join(parts)


def _joined(sign: str, pipelines: Iterator[Pipeline]) -> Iterator[Pipeline]:
    """The pipelines of what stands after `&&`, `||` or `then`: the first hangs on what was before, others on it."""
    leader: Command | None = None
    for pipeline in pipelines:
        if sign != ";" and leader is None:
            pipeline[0].join = sign
        elif sign != ";" and pipeline[0].join == ";" and pipeline[0].leader is None:
            pipeline[0].leader = leader
        leader = leader or pipeline[0]
        yield pipeline


def _unescape(text: str) -> str:
    """Text between double quotes, its escapes undone."""
    return re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", "")) if "\\" in text else text


def _ansi(text: str) -> str:
    """Text of $'...', its common escapes undone."""
    known = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
    return re.sub(r"\\(.)", lambda m: known.get(m[1], m[0]), text, flags=re.S)
