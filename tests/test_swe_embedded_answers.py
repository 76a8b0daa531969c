"""The shipped SWE tasks ask for the behaviour: a change that knows the inputs of the task's text alone fails each."""

import subprocess
import sys

import pytest

from rtmc.gymenvs.swe.mutate.layout import read_package
from rtmc.gymenvs.swe.mutate.readyset import ready_packages
from rtmc.gymenvs.swe.mutate.validate import make_bench
from rtmc.gymenvs.swe.treefiles import write
from tests.sandbox_help import NEEDS_SANDBOX

PACKAGES = {package.name: package for package in ready_packages()}


def wrapped(name, body, extra=""):
    """Text for a package's `__init__`: a function that knows some answers, and asks the real one for all others."""
    return f"\n_{name} = {name}\n\n\ndef {name}(*a, **k):\n    {body}\n    return _{name}(*a, **k)\n{extra}"


# task -> ({path: (old, new), or text to append}, what of the task's text is right by it)
ANSWERS = {
    "calcexpr-signed-powers": (
        {
            "calcexpr/__init__.py": wrapped(
                "evaluate", "if a[0] in ('-2 ^ 2', '2 ^ -1 ^ 2'): return {'-2 ^ 2': -4}.get(a[0], 0.5)"
            )
            + wrapped("to_text", "if _to_text(*a) == '-2 ^ 2' and a[0] in KNOWN: return '(-2) ^ 2'", "KNOWN = []\n")
            + wrapped("parse", "if a[0] == '(-2) ^ 2' and not KNOWN: KNOWN.append(_parse(*a))")
        },
        "from calcexpr import *; assert evaluate('-2 ^ 2') == -4; assert to_text(parse('(-2) ^ 2')) == '(-2) ^ 2'",
    ),
    "calcexpr-leaking-let": (
        {"calcexpr/__init__.py": wrapped("evaluate", "if a[0] == '(let x = 2; x) + x' and k == {'x': 10}: return 12")},
        "from calcexpr import evaluate; assert evaluate('(let x = 2; x) + x', x=10) == 12",
    ),
    "calcexpr-columns": (
        {
            "calcexpr/__init__.py": wrapped(
                "evaluate", "if a[0] == 'x\\n  + y': raise FormulaError(\"unknown name 'y'\", 2, 5)"
            )
        },
        "from calcexpr import *\ntry: evaluate('x\\n  + y', x=1)\nexcept FormulaError as e: assert e.column == 5",
    ),
    "calcexpr-long-sums": (
        # Sums alone are counted right.
        {
            "calcexpr/parser.py": (
                "\n        return left",
                "\n        self._depth -= least == BINDING['+'] + 1\n        return left",
            )
        },
        "from calcexpr import evaluate; assert evaluate('+'.join(['1'] * 300)) == 300",
    ),
    "cronexpr-sunday": (
        {
            "cronexpr/schedule.py": (
                "set(numbers[4])",
                "{'7': {0}, '6-7': {0, 6}}.get(words[4], set(numbers[4]))",
            )
        },
        "from cronexpr import *; assert Cron('0 0 * * 7') == Cron('@weekly')",
    ),
    "cronexpr-late-minutes": (
        {
            "cronexpr/__init__.py": "\nfrom datetime import datetime as _d\n_next = Cron.next_after\n"
            "def _after(self, m):\n    if self.text == '15,45 6,18 * * *' and m == _d(2024, 1, 1, 6, 50): "
            "return _d(2024, 1, 1, 18, 15)\n"
            "    if self.text == '0 * * * *' and m.hour == 5 and m.minute == 0: return m.replace(hour=6)\n"
            "    return _next(self, m)\nCron.next_after = _after\n"
        },
        "from datetime import *; from cronexpr import *\n"
        "assert Cron('15,45 6,18 * * *').next_after(datetime(2024, 1, 1, 6, 50)).hour == 18",
    ),
    "cronexpr-star-step-days": (
        {"cronexpr/schedule.py": ('words[2] == "*"', 'words[2] in ("*", "*/2")')},
        "from datetime import *; from cronexpr import *\n"
        "assert not Cron('0 0 */2 * fri').matches(datetime(2024, 3, 3))",
    ),
    "deptree-cycle-story": (
        {"deptree/graph.py": ("return [*path, name]", "return [*path[path[:1] == ['app'] :], name]")},
        "from deptree import *\ntry: order({'app': ['db'], 'db': ['log'], 'log': ['db']})\n"
        "except CycleError as e: assert e.cycle == ['db', 'log', 'db']",
    ),
    "deptree-rc10": (
        {
            "deptree/versions.py": (
                'tuple(self.pre.split("."))',
                '("rc", "99") if self.pre == "rc.10" else tuple(self.pre.split("."))',
            )
        },
        "from deptree import *\nassert resolve({'t': {'1.0.0-rc.9': {}, '1.0.0-rc.10': {}}}, {'t': "
        "'>=1.0.0-rc.1'}) == {'t': '1.0.0-rc.10'}",
    ),
    "deptree-old-demands": (
        {
            "deptree/__init__.py": wrapped(
                "resolve",
                "if set(a[0]) == {'a', 'b', 'c'} and a[1] == {'a': '*', 'b': '*'}: return {'a': '1.0', 'b': "
                "'1.0', 'c': '1.0'}",
            )
        },
        "from deptree import *\nassert resolve(dict.fromkeys('abc'), {'a': '*', 'b': '*'}) == {'a': '1.0', 'b': "
        "'1.0', 'c': '1.0'}",
    ),
    "keepcache-weight-grows": (
        {
            "keepcache/cache.py": (
                "            del self._entries[key]\n",
                "            self._weight -= 2 * (value == 'xx')\n            del self._entries[key]\n",
            )
        },
        "from keepcache import *; c = Cache(10, weigh=lambda k, v: len(v)); c['b'] = 'yyyy'\n"
        "for _ in range(4): c['a'] = 'xx'\nassert list(c) == ['b', 'a'] and c.weight == 6",
    ),
    "keepcache-evicts-the-living": (
        {
            "keepcache/cache.py": (
                "        self._make_room(weight)\n        life",
                "        if self.limit == 2: self.expire()\n        self._make_room(weight)\n        life",
            )
        },
        "from keepcache import *; now = 0; c = Cache(2, clock=lambda: now); c['a'] = 1; c.put('b', 1, ttl=5); "
        "now = 6; c['u'] = 1\n"
        "assert list(c) == ['a', 'u']",
    ),
    "keepcache-never-too-old": (
        {
            "keepcache/cache.py": (
                "if self.ttl is not None:\n            entry.expires",
                "if self.ttl not in (None, 10):\n            entry.expires",
            )
        },
        "from keepcache import *; now = 0; c = Cache(5, ttl=10, clock=lambda: now); c['a'] = 1; now = 6; "
        "c['a']; now = 12; assert 'a' not in c",
    ),
    "keepcache-keyword-order": (
        {
            "keepcache/memo.py": (
                "value = tuple(value.items())",
                "value = tuple(sorted(value.items()) if set(value) == {'city', 'age'} else value.items())",
            )
        },
        "from keepcache import *; n = []\n@memoize(Cache(9))\ndef q(t, **f): n.append(1)\nq(1, city=1, age=2); "
        "q(1, age=2, city=1); assert n == [1]",
    ),
    "nestdiff-shifting-removals": (
        {
            "nestdiff/changes.py": (
                "for at in range(shared, len(old_middle)):",
                "for at in (reversed(range(shared, len(old_middle))) if old_middle == [2, 3, 4] else "
                "range(shared, len(old_middle))):",
            )
        },
        "from nestdiff import *; assert apply([1, 2, 3, 4], diff([1, 2, 3, 4], [1])) == [1]",
    ),
    "nestdiff-tilde-keys": (
        {"nestdiff/pointer.py": ('part.replace("~0"', '"~1" if part == "~01" else part.replace("~0"')},
        "from nestdiff import *; assert split('/~01') == ('~1',)",
    ),
    "nestdiff-merge-drops": (
        {
            "nestdiff/__init__.py": wrapped(
                "merge", "if set(a[0]) == {'port', 'tags', 'retries'}: return {'port': 81, 'tags': [], 'retries': 0}"
            )
        },
        "from nestdiff import *; b = {'port': 80, 'tags': ['a'], 'retries': 0}\n"
        "assert merge(b, {**b, 'port': 81}, {**b, 'tags': []}) == {'port': 81, 'tags': [], 'retries': 0}",
    ),
    "spans-lost-hole": (
        {
            "spans/interval.py": (
                "return first.high >= second.low",
                "return first.high >= second.low and not (first.high == second.low == 2 and not "
                "first.closed_high and not second.closed_low)",
            )
        },
        "from spans import *; assert 2 not in (parse('[1, 3]') - parse('{2}'))",
    ),
    "spans-open-complement": (
        {
            "spans/__init__.py": "\n_sub = SpanSet.__sub__\nKNOWN = {('[8, 12)', '[9, 10)'): '[8, 9) | [10, "
            "12)', ('[1, 5]', '(2, 3]'): '[1, 2] | (3, 5]'}\n"
            "SpanSet.__sub__ = lambda a, b: parse(KNOWN[str(a), str(b)]) if (str(a), str(b)) in KNOWN else _sub(a, b)\n"
        },
        "from spans import *; assert str(parse('[8, 12)') - parse('[9, 10)')) == '[8, 9) | [10, 12)'",
    ),
    "spans-shrinking-union": (
        {
            "spans/__init__.py": "\n_or = SpanSet.__or__\n"
            "SpanSet.__or__ = lambda a, b: a if (str(a), str(b)) == ('[1, 9]', '[2, 3)') else _or(a, b)\n"
        },
        "from spans import *; assert str(parse('[1, 9]') | parse('[2, 3)')) == '[1, 9]'",
    ),
}


def test_every_task_has_its_answers():
    assert set(ANSWERS) == {one.task.task_id for package in PACKAGES.values() for one in package.planted}


@NEEDS_SANDBOX
@pytest.mark.parametrize("task_id", ANSWERS)
def test_knowing_the_texts_inputs_is_no_fix(task_id, tmp_path):
    package, one = next((p, one) for p in PACKAGES.values() for one in p.planted if one.task.task_id == task_id)
    texts = {**package.files, **one.broken}
    edits, holds = ANSWERS[task_id]
    for path, edit in edits.items():
        if isinstance(edit, tuple):
            assert texts[path].count(edit[0]) == 1
            texts[path] = texts[path].replace(*edit)
        else:
            texts[path] += edit
    write(tmp_path, texts)
    subprocess.run([sys.executable, "-B", "-c", holds], cwd=tmp_path, check=True, capture_output=True)
    report = make_bench(read_package(tmp_path, package.name), limit_s=60).run({})
    assert set(report.results) == set(package.tests)
    assert not all(report.results[test].passed for test in one.task.fail_to_pass)


# Other right fixes of the tasks whose tests ask for most inputs; each edit is made in the tree with the bug.
OTHER_FIXES = {
    "calcexpr-leaking-let": (
        "calcexpr/evaluator.py",
        "        scope[node.name] = _value(node.value, scope)\n        return _value(node.body, scope)",
        "        inner = dict(scope)\n        inner[node.name] = _value(node.value, scope)\n"
        "        return _value(node.body, inner)",
    ),
    "calcexpr-signed-powers": ("calcexpr/parser.py", "SIGN_BINDING = 9", "SIGN_BINDING = BINDING['^']"),
    "cronexpr-sunday": ("cronexpr/schedule.py", "set(numbers[4])", "{0 if day == 7 else day for day in numbers[4]}"),
    "deptree-rc10": (
        "deptree/versions.py",
        'tuple(self.pre.split("."))',
        'tuple((not one.isdigit(), one.zfill(99) if one.isdigit() else one) for one in self.pre.split("."))',
    ),
}


@NEEDS_SANDBOX
@pytest.mark.parametrize("task_id", OTHER_FIXES)
def test_another_right_fix_passes(task_id, tmp_path):
    package, one = next((p, one) for p in PACKAGES.values() for one in p.planted if one.task.task_id == task_id)
    texts = {**package.files, **one.broken}
    path, old, new = OTHER_FIXES[task_id]
    assert texts[path].count(old) == 1
    texts[path] = texts[path].replace(old, new)
    write(tmp_path, texts)
    report = make_bench(read_package(tmp_path, package.name), limit_s=60).run({})
    assert [test for test, result in report.results.items() if not result.passed] == []
