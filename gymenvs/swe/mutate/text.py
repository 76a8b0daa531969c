"""A module's text, spliced at the positions of its syntax tree so that nothing else of it changes.

What this is not: `ast.unparse`. Comments, blank lines, quotes, tabs, line ends, byte order mark and encoding stay as
they are: an edit replaces a range of bytes and touches no other.

`ast` counts lines as the tokenizer does (`\\n`, `\\r\\n` and a lone `\\r` end one; `\\f`, `\\v` and U+2028 do not) and
columns in bytes of the line's UTF-8 form, whatever the file's encoding is. So all offsets here are bytes of the
UTF-8 form, and the file's encoding is applied when the result is written.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Steps from the module down to a node: a field's name, then the place in it where the field is a list.
Path = tuple[str | int, ...]

_LINE_END = re.compile(rb"\r\n|\r|\n")
_COMMENT = re.compile(rb"#[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start`:`end` of the UTF-8 form become `new`."""

    start: int
    end: int
    new: str


class Source:
    """A Python module's bytes with its tree.

    Raises:
        ValueError: the bytes are no text of the encoding they declare, or no Python this interpreter can parse.
    """

    def __init__(self, data: bytes, name: str = "<source>") -> None:
        self.name, self.data = name, data
        try:
            self.encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(self.encoding)
            self.tree = ast.parse(text)
            if text.encode(self.encoding) != data:
                raise ValueError("its encoding writes the same text in several ways")
        except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError) as error:
            raise ValueError(f"{name}: this is no Python module that can be read ({error})") from None
        self.utf8 = text.encode()
        self._starts = [0, *(end.end() for end in _LINE_END.finditer(self.utf8))]

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword) -> tuple[int, int]:
        """First byte of the node and the one after its last; parentheses around it do not belong to it."""
        last = node.end_lineno if node.end_lineno is not None else node.lineno
        after = node.end_col_offset if node.end_col_offset is not None else node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[last - 1] + after

    def text(self, start: int, end: int) -> str:
        return self.utf8[start:end].decode()

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The node's own text."""
        return self.text(*self.span(node))

    def gap(self, start: int, end: int) -> bytes:
        """The bytes between two neighbouring nodes, comments blanked: no string can stand there, so `#` begins one."""
        return _COMMENT.sub(lambda found: b" " * len(found.group()), self.utf8[start:end])

    def line_start(self, offset: int) -> int:
        """Where the line begins that holds the byte."""
        return max((start for start in self._starts if start <= offset), default=0)

    def line_end(self, offset: int) -> int:
        """Where the next line begins, or the text ends."""
        return min((start for start in self._starts if start > offset), default=len(self.utf8))

    def line(self, number: int) -> str:
        """Line `number` (from 1) without its end."""
        start = self._starts[number - 1]
        return _LINE_END.sub(b"", self.utf8[start : self.line_end(start)]).decode()

    def splice(self, edits: Sequence[Edit]) -> bytes:
        """The file's bytes after the edits, in the file's encoding.

        Raises:
            ValueError: two edits overlap, or the new text cannot be written in the file's encoding.
        """
        done, at = bytearray(), 0
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            if edit.start < at:
                raise ValueError(f"{self.name}: two edits overlap at byte {edit.start}")
            done += self.utf8[at : edit.start] + edit.new.encode()
            at = edit.end
        return (bytes(done) + self.utf8[at:]).decode().encode(self.encoding)

    def holds(self, node: ast.expr) -> bool:
        """Whether the text at the node's position reads as the node.

        Before Python 3.12 the positions inside an f-string may be wrong; what is read there is checked with this.
        """
        try:
            start, end = self.span(node)
            # In parentheses, because a line break inside the node may have stood in some outside it.
            read = ast.parse(f"({self.text(start, end)}\n)", mode="eval").body
        except (SyntaxError, ValueError, IndexError):
            return False
        return ast.dump(read) == ast.dump(node)


def differences(old: ast.AST, new: ast.AST) -> Iterator[Path]:
    """The highest places where two trees differ; positions in the text do not count."""
    waiting: list[tuple[object, object, Path]] = [(old, new, ())]
    while waiting:
        a, b, path = waiting.pop()
        if isinstance(a, ast.AST) and type(a) is type(b):
            for field in a._fields:
                if field not in ("kind", "type_comment"):
                    waiting.append((getattr(a, field, None), getattr(b, field, None), (*path, field)))
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            waiting += [(x, y, (*path, at)) for at, (x, y) in enumerate(zip(a, b, strict=True))]
        elif isinstance(a, (ast.AST, list)) or type(a) is not type(b) or repr(a) != repr(b):
            yield path


def changed_only(source: Source, data: bytes, targets: Sequence[Path]) -> bool:
    """Whether `data` parses, differs from the source under each of the targets, and nowhere else."""
    try:
        new = Source(data, source.name)
    except ValueError:
        return False
    found = list(differences(source.tree, new.tree))
    under = [[path for path in found if path[: len(target)] == target] for target in targets]
    return all(under) and sum(map(len, under)) == len(found)
