"""One change made with many tools has one key: held against each other, against sed itself, and worked by hand."""

import shutil
import subprocess

import pytest

from rtmc.signatures.changes import digest, normal
from rtmc.signatures.scripts import python_effects
from rtmc.signatures.sed import sed_change, sed_texts
from tests.swe_replays import call, numbered
from tests.test_signatures_swe import NONE, of

LINES = {1: "import os", 2: "", 3: "def f():", 4: "    return 1", 5: ""}
TEXT = "\n".join(LINES.values())
P = "/testbed/a.py"
SEEN = {
    "cat -n": ("cat -n a.py", numbered("{:6d}\t{}", {n: t for n, t in LINES.items() if n < 5})),
    "cat": ("cat a.py", f"<returncode>0</returncode>\n<output>\n{TEXT}</output>"),
    "view": (
        call("str_replace_editor", command="view", path=P),
        "Here's the result of running `cat -n`:\n" + numbered("{:6d}\t{}", {n: t for n, t in LINES.items() if n < 5}),
    ),
}


def editor(command, **given):
    return call("str_replace_editor", command=command, path=P, **given)


def script(*lines):
    return "python - <<'E'\n" + "\n".join(lines) + "\nE"


INSERTIONS = {
    "insert": editor("insert", insert_line=1, new_str="import sys"),
    "str_replace": editor("str_replace", old_str="import os\n", new_str="import os\nimport sys\n"),
    "git apply": "git apply <<'E'\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n import os\n+import sys\n \nE",
    "sed a\\": "sed -i '1a\\import sys' a.py",
    "sed a": "sed -i '1a import sys' a.py",
    "sed a, lines": "sed -i '1a\\\nimport sys' a.py",
    "sed i": "sed -i '2i\\import sys' a.py",
    "sed s/$/": "sed -i '1s/$/\\nimport sys/' a.py",
    "sed /x/a": "sed -i '/^import os/a import sys' a.py",
    "sed s": "sed -i 's/^import os$/import os\\nimport sys/' a.py",
    "perl": "perl -pi -e 's/^import os$/import os\\nimport sys/' a.py",
    "rewrite": "cat > a.py <<'E'\n" + TEXT.replace("import os", "import os\nimport sys") + "E",
    "python replace": script(
        "p = 'a.py'", "s = open(p).read().replace('import os', 'import os\\nimport sys')", "open(p, 'w').write(s)"
    ),
    "python insert": script(
        "l = open('a.py').readlines()", "l.insert(1, 'import sys\\n')", "open('a.py', 'w').writelines(l)"
    ),
    "python slice": script(
        "l = open('a.py').readlines()", "l[1:1] = ['import sys\\n']", "open('a.py', 'w').writelines(l)"
    ),
}
REPLACEMENTS = {
    "str_replace": editor("str_replace", old_str="return 1", new_str="return 2"),
    "sed s": "sed -i '4s/1/2/' a.py",
    "sed -E": "sed -E -i 's/return 1/return 2/' a.py",
    "BSD's sed": "sed -i '' 's/return 1/return 2/' a.py",
    "sed c": "sed -i '4c\\    return 2' a.py",
    "sed c, lines": "sed -i '4c\\\n    return 2' a.py",
    "sed {}": "sed -i '/def f/,+1{s/1/2/}' a.py".replace("/def f/,+1", "3,4"),
    "perl -pi": "perl -pi -e 's/return 1/return 2/' a.py",
    "perl -i -pe": "perl -i -pe 's/return 1/return 2/' a.py",
    "perl -0777": "perl -0777 -pi -e 's/return 1/return 2/' a.py",
    "rewrite": "cat > a.py <<'E'\n" + TEXT.replace("1", "2") + "E",
    "python line": script(
        "l = open('a.py').readlines()", "l[3] = '    return 2\\n'", "open('a.py', 'w').writelines(l)"
    ),
    "python slice": script(
        "f = 'a.py'",
        "l = open(f).readlines()",
        "l[3:4] = ['    return 2\\n']",
        "with open(f, 'w') as h:",
        "    h.writelines(l)",
    ),
    "fileinput": script(
        "import fileinput",
        "for l in fileinput.input('a.py', inplace=True):",
        "    print(l.replace('return 1', 'return 2'), end='')",
    ),
    "two edits": call("multiedit", path=P, edits=[{"old_string": "return 1", "new_string": "return 2"}]),
    "Cline": call(
        "replace_in_file", path=P, diff="------- SEARCH\n    return 1\n=======\n    return 2\n+++++++ REPLACE"
    ),
}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("form", INSERTIONS)
def test_an_insertion_is_one_whatever_made_it(form, seen):
    edit = (INSERTIONS[form], "")
    key = f"insert:{digest('', 'import sys', 4)}"
    states, actions = of(SEEN[seen], edit)
    assert actions[1] == f"modify:{key}@a.py"
    assert states[-1] == f"a.py:I:{key[-4:]},Vf|{NONE}"
    if form != "rewrite":  # of a file that was never seen nothing tells what a rewrite replaces
        assert of(edit)[1] == [f"modify:{key}@a.py"]


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("form", REPLACEMENTS)
def test_a_replacement_is_one_whatever_made_it(form, seen):
    key = digest("return 1", "return 2", 4)
    assert of(SEEN[seen], (REPLACEMENTS[form], ""))[1][1] == f"modify:replace:{key}@a.py"


def test_lines_that_are_put_in_a_place_not_seen_replace_something():
    for form in ("sed c", "python line", "python slice"):
        assert of((REPLACEMENTS[form], ""), hash_chars=0)[1] == ["modify:replace@a.py"]
    windowed = [("edit 4:4\n    return 2\nend_of_edit", "[File: /testbed/a.py (5 lines total)]\n4:    return 2")]
    assert of(*windowed, hash_chars=0)[1] == ["modify:replace@a.py"]


def test_several_lines_in_the_place_of_one():
    forms = [
        "sed -i '4c\\\n# r\\\n    return 2' a.py",
        "sed -i '4c\\# r\\n    return 2' a.py",
        editor("str_replace", old_str="    return 1", new_str="# r\n    return 2"),
    ]
    found = {of(SEEN["cat -n"], (form, ""))[1][1] for form in forms}
    assert found == {f"modify:replace:{digest('return 1', chr(10).join(('# r', '    return 2')), 4)}@a.py"}


def test_a_view_of_a_part_does_not_tell_what_a_rewrite_replaces():
    part = ("sed -n 1,2p a.py", "import os\n")
    assert of(part, (INSERTIONS["rewrite"], ""), hash_chars=0)[1][1] == "modify:replace@a.py"
    cut = ("cat -n a.py", SEEN["cat -n"][1] + "\n<response clipped><NOTE>")
    assert of(cut, (INSERTIONS["rewrite"], ""), hash_chars=0)[1][1] == "modify:replace@a.py"


PATCH = "--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    "line", ["git apply fix.patch", "patch -p1 < fix.patch", "patch -p1 -i fix.patch", "cat fix.patch | git apply -"]
)
def test_a_patch_file_is_read_where_the_rollout_wrote_it(line):
    states, actions = of((f"cat > fix.patch <<'E'\n{PATCH}E", ""), (line, ""))
    assert actions[1] == "modify:replace:187e@src/a.py"  # echo -n ab | md5sum
    assert "|src/a.py:M:187e|" in states[-1]


def test_else_the_answer_names_the_files_that_are_patched():
    states, actions = of(("patch -p1 < x.patch", "patching file src/a.py\npatching file src/b.py"))
    assert actions == ["modify:replace@src/a.py"]
    assert states[-1] == f"src/a.py:M|src/b.py:M|{NONE}"
    assert of(("git apply x.patch", ""))[1] == ["modify:replace@x.patch"]


@pytest.mark.skipif(shutil.which("sed") is None, reason="no sed to compare with")
@pytest.mark.parametrize(
    "programme",
    [
        "2c\\# r\\nnew",
        "2c\\\n# r\\\nnew",
        "2c\\    in\\td \\\\ x",
        "2a text\\nmore",
        "2a\\text",
        "2i   lead",
        "2i\\\n   lead",
        "3c\\\n\\n x\\ty",
        "/two/a\\  after",
        "2{s/t/T/;s/w/W/}",
        "1d",
        "2,3d",
        "$d",
        "2,$s/t/T/",
        "s/e/E/g",
        "s/two/[&]/",
        "2s/.*/x\\/y/",
        "s|two|a/b|",
        "/three/d",
        "2,+1d",
        "1s/^/head\\n/",
        "s/o.*/X/",
        "2s/T/q/I",
        "s/two/a;b/",
        "2c\\one } two",
        "s/(o)/x/",
        "1i\\\nnew",
        "s/$/!/",
        "2,3c\\both",
    ],
)
def test_sed_does_what_it_is_said_to_do(programme):
    text = "one\ntwo (o) tt\nthree\nfour\n"
    done = subprocess.run(["sed", programme], input=text, capture_output=True, text=True, check=True).stdout
    lines = dict(enumerate(text.split("\n")[:-1], 1))
    found = sed_change(programme, lines)
    assert (found is None) == (text == done)
    if found is not None and programme not in ("s/e/E/g", "s/o.*/X/", "s/$/!/"):
        assert normal(*found) == normal(text, done)
    elif found is not None:  # several places: what changes is told line by line
        pairs = [p for p in zip(text.split("\n"), done.split("\n"), strict=True) if p[0] != p[1]]
        assert found == tuple("\n".join(side) for side in zip(*pairs, strict=True))


@pytest.mark.parametrize(
    ("programme", "dialect", "told"),
    [
        ("s/a\\.b/c/", "sed", ("a.b", "c")),
        ("s/a/b\\nc/", "sed", ("a", "b\nc")),
        ("5a\\new", "sed", ("", "new")),
        ("5d", "sed", (None, "5d")),
        ("5c\\new", "sed", (None, "new")),
        ("y/abc/xyz/", "sed", (None, "y/abc/xyz/")),
        ("s/return 1/return 2/", "perl", ("return 1", "return 2")),
        ("s/(a+)/$1/", "sed-E", ("(a+)", "$1")),
    ],
)
def test_what_a_programme_spells(programme, dialect, told):
    assert sed_texts(programme, dialect) == told


@pytest.mark.parametrize(
    ("pattern", "dialect"),
    [
        ("(one)", "sed-E"),
        ("o+", "perl"),
        ("\\(o\\)", "sed"),
        ("$x", "perl"),
        ("[o]", "sed"),
        ("o\\{2\\}", "sed"),
        ("\\bone", "perl"),
    ],
)
def test_patterns_that_are_not_followed(pattern, dialect):
    assert sed_change(f"s/{pattern}/x/", {1: "one", 2: "(one)"}, dialect) is None


def test_edits_of_lines_that_a_script_does_not_spell():
    head = "l = open('a').readlines()\n"
    end = "\nopen('a', 'w').writelines(l)"
    for body in ("l[n] = 'x'", "l[3] = y", "l[1:k] = ['x']", "l.insert(0, 'x')\nl[5] = 'y'"):
        (effect,) = python_effects(head + body + end)
        assert (effect.category, effect.path, effect.scope, effect.old) == ("modify", "a", "replace", None)
    (effect,) = python_effects(head + "del l[2]" + end)
    assert sed_change(effect.new, {1: "a", 2: "b", 3: "c"}) == ("c", "")
