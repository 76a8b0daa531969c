"""Patterns of edits against the engines they are of: Python's `re`, and sed itself; in a time that no pattern makes
long."""

import random
import re
import shutil
import subprocess
import time

import pytest

from rtmc.signatures.patterns import TooLongError, compiled, replaced

SINGLES = ["a", "b", ".", "[ab]", "[^a]", "\\.", "x", " "]


def pattern(choose, opening, closing, repeats, more=()):
    """(pattern, number of groups): up to six repeated characters, in groups or not, anchored or not."""
    parts, depth, groups = ["^"] if choose.random() < 0.2 else [], 0, 0
    for _ in range(choose.randint(1, 6)):
        if choose.random() < 0.25:
            parts.append(opening)
            depth, groups = depth + 1, groups + 1
        parts.append(choose.choice([*SINGLES, *more]) + choose.choice(repeats))
        if depth and choose.random() < 0.5:
            parts.append(closing)
            depth -= 1
    return "".join(parts) + closing * depth + ("$" if choose.random() < 0.2 else ""), groups


def text(choose):
    return "".join(choose.choice("abc x.") for _ in range(choose.randint(0, 12)))


def test_matches_are_those_of_python():
    choose, followed = random.Random(0), 0
    repeats = ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?"]
    for _ in range(3000):
        written, groups = pattern(choose, "(", ")", repeats, ("\\s", "\\w", "\\b", "\\d"))
        written = re.sub(r"\\b[*+?{][^abx.\[\\ ()]*", r"\\b", written)  # a place is not repeated
        line = text(choose)
        made = compiled(written, "python")
        if made is None:
            continue
        followed += 1
        expected = [[m.span(n) for n in range(groups + 1)] for m in re.finditer(written, line)]
        assert list(made.matches(line)) == expected, (written, line)
        put = "<\\g<1>>\\n" if groups else "[\\g<0>]"
        assert replaced(made, put, line, "python", 1, 0) == re.sub(written, put, line)
        folded = compiled(written, "python", True)
        upper = line.upper()
        assert folded is not None
        assert [m[0] for m in folded.matches(upper)] == [m.span() for m in re.finditer(written, upper, re.I)]
    assert followed > 2500


@pytest.mark.skipif(shutil.which("sed") is None, reason="no sed to compare with")
@pytest.mark.parametrize("dialect", ["sed", "sed-E"])
def test_replacements_are_those_of_sed(dialect):
    choose = random.Random(1)
    extended = dialect == "sed-E"
    brackets = ("(", ")") if extended else ("\\(", "\\)")
    repeats = ["", "", "", "*", "+", "?", "{2}", "{1,2}"] if extended else ["", "", "", "*", "\\+", "\\?", "\\{2\\}"]
    script, cases = [], []
    while len(cases) < 150:
        written, groups = pattern(choose, *brackets, repeats, ("[[:space:]]", "[^[:alpha:]]"))
        made = compiled(written, dialect)
        if groups > 9 or made is None:
            continue
        put = "<&" + "".join(f"|\\{n}" for n in range(1, groups + 1)) + ">"
        which, every = choose.choice([1, 1, 2]), choose.random() < 0.5
        line = text(choose)
        number = len(cases) + 1
        script.append(f"{number}s/{written}/{put}/{which if which > 1 else ''}{'g' if every else ''}")
        cases.append((made, put, line, which, every))
    command = ["sed", *(["-E"] if extended else []), "\n".join(script)]
    given = "".join(f"{line}\n" for _, _, line, _, _ in cases)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    found = [replaced(made, put, line, dialect, n, 0 if every else 1) for made, put, line, n, every in cases]
    assert found == done.split("\n")[:-1]


@pytest.mark.parametrize(
    ("written", "dialect", "line", "put", "expected"),
    [
        ("int(\\(.*\\))", "sed", "return int(v / 2)", "int(round(\\1))", "return int(round(v / 2))"),
        ("int\\((.*)\\)", "perl", "return int(v / 2)", "int(round($1))", "return int(round(v / 2))"),
        ("int\\((.*)\\)", "python", "return int(v / 2)", r"int(round(\g<1>))", "return int(round(v / 2))"),
        ("int\\(([^)]*)\\)", "sed-E", "int(a) + int(b)", "\\1", "a + int(b)"),
        ("(\\w+) = (\\w+)", "perl", "a = bc", "${2} = $1 # $&", "bc = a # a = bc"),
        ("\\<a\\>", "sed", "ab a", "&\\n", "ab a\n"),
        ("a\\|b", "sed-E", "x a|b", "c", "x c"),
        ("[[:digit:]]\\+", "sed", "v12", "N", "vN"),
        ("[]a]", "sed", "x]", "b", "xb"),
        ("*a", "sed", "*a", "b", "b"),
        ("a{x}", "python", "a{x}", "b", "b"),
    ],
)
def test_by_hand(written, dialect, line, put, expected):
    made = compiled(written, dialect)
    assert made is not None
    assert replaced(made, put, line, dialect) == expected


@pytest.mark.parametrize(
    ("written", "dialect"),
    [
        *[("", "sed"), ("(a)*", "sed-E"), ("\\(a\\)*", "sed"), ("a|b", "sed-E"), ("a\\|b", "sed")],
        *[("(a)\\1", "python"), ("(?=a)", "python"), ("(?i)a", "perl"), ("a$b", "perl"), ("@x", "perl")],
        *[("a**", "python"), ("[a", "sed"), ("(a", "sed-E"), ("a)", "python"), ("\\(a", "sed"), ("+a", "sed-E")],
        *[("a{3,1}", "sed-E"), ("\\Qa\\E", "perl"), ("a*+", "perl"), ("[[:foo:]]", "sed"), ("[b-a]", "sed")],
        *[("a{900}", "sed-E"), ("\\x41", "python")],
    ],
)
def test_patterns_that_are_not_followed(written, dialect):
    assert compiled(written, dialect) is None


@pytest.mark.parametrize("put", ["\\2", "\\U&", "\\x"])
def test_replacements_that_are_not_followed(put):
    made = compiled("\\(a\\)", "sed")
    assert made is not None
    assert replaced(made, put, "a", "sed") is None


def test_no_pattern_takes_long():
    began = time.process_time()
    line = "a" * 2000
    for written in ("(a*)(a*)(a*)(a*)(a*)b", ".*.*.*.*.*.*=.*", "a?" * 40 + "a" * 40 + "$", "(.*)(.*)(.*)(.*)x"):
        made = compiled(written, "python")
        assert made is not None
        for _ in range(5):
            list(made.matches(line))
    assert time.process_time() - began < 10
    made = compiled("[ab]*c*", "python")
    assert made is not None
    with pytest.raises(TooLongError):
        list(made.matches("a" * 1_000_000))
