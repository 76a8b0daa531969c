"""Commands that look: which lines of which files a reader lets through, and where a search tool looks.

What this is not: nothing is read. Lines that a pattern chooses are unknown until the answer shows their numbers.
"""

from __future__ import annotations

import re
from itertools import pairwise

from rtmc.signatures.effects import Effect
from rtmc.signatures.shell import Command

# Some lines, which ones only the answer can tell.
SOME = (0, 0)


def read_effects(name: str, words: list[str], command: Command) -> list[Effect]:
    """The effects of a reader such as cat, head or sed that changes nothing."""
    lines, paths = shown(name, words)
    term = _sought(words) if name == "sed" else None
    if term is not None:
        return [Effect("search", path, term=term, shell=True) for path in paths or ([command.reads or ""])]
    paths = paths or ([command.reads] if command.reads else [])
    if name.endswith("awk") and lines is None:
        return [Effect("search", path, shell=True) for path in paths]
    if lines is None:
        return [Effect("view", path, "full", shell=True) for path in paths]
    scope = "some" if lines == SOME else "partial"
    return [Effect("view", path, scope, lines=None if lines == SOME else lines, shell=True) for path in paths]


def shown(name: str, words: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
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
    if name in ("bat", "batcat"):
        return _bat_lines(rest)
    if name in ("less", "more"):
        first = next((_digits(w[1:]) for w in rest if w.startswith("+") and _digits(w[1:]) is not None), None)
        found = next((SOME for w in rest if w.startswith("+/")), None)
        return found if first is None else (first, -1), [w for w in rest if w[:1] not in ("-", "+")]
    if name == "perl":
        return _perl_lines(rest)
    if name.endswith("awk"):
        plain = [w for before, w in pairwise(words) if not w.startswith("-") and before not in ("-v", "-F")]
        programme, paths = next(iter(plain), ""), plain[1:]
        ends = re.search(r"NR\s*==\s*(\d{1,9})\s*,\s*F?NR\s*==\s*(\d{1,9})", programme)
        if ends:
            return (int(ends[1]), int(ends[2])), paths
        if re.match(r"/[^/]{1,200}/\s*,\s*/", programme):
            return SOME, paths
        numbers = re.findall(r"NR\s*(>=|<=|==|>|<)\s*(\d{1,9})", programme)
        if not numbers:
            return None, paths
        low = [int(n) + (sign == ">") for sign, n in numbers if sign in (">", ">=", "==")]
        high = [int(n) - (sign == "<") for sign, n in numbers if sign in ("<", "<=", "==")]
        return (max(low, default=1), min(high, default=-1)), paths
    return None, [w for w in rest if not w.startswith("-")]


def _bat_lines(rest: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
    lines, paths, at = None, [], 0
    while at < len(rest):
        word = rest[at]
        option, mark, value = word.partition("=")
        if option in ("-r", "--line-range", "-l", "--language", "--style", "--theme", "--paging", "--color", "--wrap"):
            if not mark:
                at += 1
                value = rest[at] if at < len(rest) else ""
            found = re.fullmatch(r"(\d{0,9})(?:(:)\+?(\d{0,9}))?", value)
            if option in ("-r", "--line-range") and found and value:
                low, high = int(found[1] or 1), _digits(found[3] or "")
                lines = (low, low if not found[2] else -1 if high is None else high)
        elif not word.startswith("-"):
            paths.append(word)
        at += 1
    return lines, paths


_PERL_LINES = re.compile(
    r"\s*print(?: \$_)? if (?:(?:\$\. ?==? ?)?(\d{1,9}) ?\.\. ?(?:\$\. ?== ?)?(\d{1,9})"
    r"|\$\. ?>= ?(\d{1,9}) ?(?:&&|and) ?\$\. ?<= ?(\d{1,9}));?\s*"
)


def prints_lines(words: list[str]) -> bool:
    """Whether a perl command prints some lines of its files by their numbers, and changes nothing."""
    return _perl_lines(words[1:])[0] is not None


def _perl_lines(rest: list[str]) -> tuple[tuple[int, int] | None, list[str]]:
    plain = [w for w in rest if not w.startswith("-")]
    found = _PERL_LINES.fullmatch(plain[0]) if plain and any(re.fullmatch(r"-\w*n\w*e", w) for w in rest) else None
    if found is None:
        return None, plain[1:]
    return (int(found[1] or found[3]), int(found[2] or found[4])), plain[1:]


def _sought(words: list[str]) -> str | None:
    """What `sed -n '/foo/p'` looks for."""
    programmes = [w for w in words[1:] if not w.startswith("-")][:1]
    found = re.fullmatch(r"\s*/((?:[^/\\\n]|\\.){1,200})/I?\s*p\s*", programmes[0]) if programmes else None
    return found[1] if found is not None and _silent(words) else None


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
    kept = re.fullmatch(r"\s*(\d{1,9}),(\d{1,9}|\$)\s*!\s*d\s*", programmes[0]) if len(programmes) == 1 else None
    if kept is not None:
        return (int(kept[1]), -1 if kept[2] == "$" else int(kept[2])), paths
    spans = []
    for programme in programmes:
        for m in re.finditer(r"(?:^|[;{\s])(\d{1,9})(?:,(?:(\d{1,9}|\$)|\+(\d{1,9})))?\s*p", programme):
            last = int(m[1]) + int(m[3]) if m[3] else -1 if m[2] == "$" else int(m[2] or m[1])
            spans.append((int(m[1]), last))
    if any(re.search(r"/[^/\n]{1,200}/[^/]{0,20}p\b", programme) for programme in programmes) and _silent(rest):
        return SOME, paths
    if not spans:
        stop = re.fullmatch(r"\s*(\d{1,9})q\s*", programmes[0]) if len(programmes) == 1 else None
        return (None if stop is None else (1, int(stop[1]))), paths
    return (min(low for low, _ in spans), -1 if any(h < 0 for _, h in spans) else max(h for _, h in spans)), paths


def _silent(rest: list[str]) -> bool:
    """Whether sed prints only what it is told to."""
    return any(re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*|--quiet|--silent", word) for word in rest)


def within(outer: tuple[int, int] | None, inner: tuple[int, int]) -> tuple[int, int]:
    """Lines `inner` of the lines `outer` of a file: `head -60 f | tail -20` is lines 41 to 60."""
    if SOME in (outer, inner):
        return SOME
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


def searched(name: str, words: list[str]) -> list[Effect]:
    """The effects of a search tool: one a place it looks in ("" = the working directory)."""
    if name in ("ls", "dir", "tree", "locate"):
        valued = ("-I", "-w", "-T") if name in ("ls", "dir") else ("-L", "-I", "-P", "-o")
        return [Effect("search", path, shell=True) for path in _plain(words, valued) or [""]]
    if name in ("find", "fd", "fdfind"):
        plain = _plain(words, ("-e", "-E", "-t", "-d"))
        term, roots = (plain[0] if plain else ""), plain[1:2] or [""]
        if name == "find":
            stop = next((i for i, w in enumerate(words) if i and w[:1] in "-(!\\"), len(words))
            roots = words[1:stop] or [""]
            term = next((words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-name", "-iname", "-path")), "")
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
    if not terms and rest and "--files" not in words:
        terms.append(rest.pop(0))
    return [Effect("search", path, term="|".join(terms), shell=True) for path in rest or [""]]


def _plain(words: list[str], valued: tuple[str, ...]) -> list[str]:
    """The arguments that are neither options nor the values of `valued` ones."""
    return [word for before, word in pairwise(words) if not word.startswith("-") and before not in valued]
