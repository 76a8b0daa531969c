"""One change made with many tools has one key: held against each other, against sed itself, and worked by hand."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    # So it is where one line writes and applies it.
    states, actions = of((f"cat > fix.patch <<'E'\n{PATCH}E\n{line}", ""))
    assert actions == ["modify:replace:187e@src/a.py"]
    assert "|src/a.py:M:187e|" in states[-1]


@pytest.mark.parametrize(
    "line", ["git apply -R fix.patch", "patch -R -p1 < fix.patch", "git apply --reverse fix.patch"]
)
def test_a_patch_file_taken_back(line):
    _, actions = of((f"cat > fix.patch <<'E'\n{PATCH}E", ""), (line, ""))
    assert actions[1] == "modify:replace:187e@src/a.py".replace("187e", digest("b", "a", 4))


def test_else_the_answer_names_the_files_that_are_patched():
    states, actions = of(("patch -p1 < x.patch", "patching file src/a.py\npatching file src/b.py"))
    assert actions == ["modify:replace@src/a.py"]
    assert states[-1] == f"src/a.py:M|src/b.py:M|{NONE}"
    back = of(("patch -R -p1 < x.patch", "patching file src/a.py"))[1]
    assert back != of(("patch -p1 < x.patch", "patching file src/a.py"))[1]
    # Where nothing tells them, something of the repository has changed, and not the patch.
    states, actions = of(("git apply x.patch", ""), hash_chars=0)
    assert (actions, states[-1]) == (["modify:replace@."], f".:M|{NONE}")
    lines = ("git apply x.patch", "git apply -R x.patch", "git apply y.patch", "patch -R -p1 -i y.patch")
    assert len({of((line, ""))[1][0] for line in lines}) == 4
    framed = "<returncode>0</returncode>\n<output>\npatching file src/a.py</output>"
    assert of(("patch -p1 < x.patch", framed))[1] == ["modify:replace@src/a.py"]
    assert of(("patch a.py x.patch", ""), hash_chars=0)[1] == ["modify:replace@a.py"]


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
    if found is not None:
        assert found == dict(enumerate(done.split("\n")[:-1], 1))


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
        ("s/f(\\(x.y\\))/g(\\1)/", "sed", ("f(x.y)", "g(x.y)")),
        ("s/^f\\((x)\\)$/g($1, &)/", "perl", ("f(x)", "g(x, &)")),
    ],
)
def test_what_a_programme_spells(programme, dialect, told):
    assert sed_texts(programme, dialect) == told


def test_edits_of_lines_that_a_script_does_not_spell():
    head = "l = open('a').readlines()\n"
    end = "\nopen('a', 'w').writelines(l)"
    for body in ("l[n] = 'x'", "l[3] = y", "l[1:k] = ['x']", "l.insert(0, 'x')\nl[5] = 'y'"):
        (effect,) = python_effects(head + body + end)
        assert (effect.category, effect.path, effect.scope, effect.old) == ("modify", "a", "replace", None)
    (effect,) = python_effects(head + "del l[2]" + end)
    assert sed_change(effect.new, {1: "a", 2: "b", 3: "c"}) == {1: "a", 2: "b"}


# Unchanged lines between changed ones.

ABC = ("cat a.py", "a\nb\nc\n")
PAIRS = {
    "patch": "git apply <<'E'\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n-a\n+A\n b\n-c\n+C\nE",
    "two hunks": "git apply <<'E'\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-c\n+C\nE",
    "patch taken back": "git apply -R <<'E'\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n-A\n+a\n b\n-C\n+c\nE",
    "apply_patch": call(
        "apply_patch", input="*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+A\n b\n-c\n+C\n*** End Patch"
    ),
    "str_replace": editor("str_replace", old_str="a\nb\nc", new_str="A\nb\nC"),
    "sed": "sed -i -e 's/a/A/' -e 's/c/C/' a.py",
    "two seds": "sed -i '1s/.*/A/;3c\\C' a.py",
    "perl": "perl -0pi -e 's/a\\nb\\nc/A\\nb\\nC/' a.py",
    "whole": "cat > a.py <<'E'\nA\nb\nC\nE",
    "whole, by name": call("write_file", path=P, content="A\nb\nC\n"),
    "python": script("s = open('a.py').read().replace('a', 'A').replace('c', 'C')", "open('a.py', 'w').write(s)"),
    "lines": call("edit_lines", path=P, start_line=1, end_line=3, new_content="A\nb\nC"),
    "MultiEdit": call(
        "multiedit", path=P, edits=[{"old_string": "a", "new_string": "A"}, {"old_string": "c", "new_string": "C"}]
    ),
    "through a file": "sed 's/a/A/;s/c/C/' a.py > t && mv t a.py",
}


@pytest.mark.parametrize("form", PAIRS)
def test_unchanged_lines_between_changed_ones_do_not_count(form):
    assert of(ABC, (PAIRS[form], ""))[1][1] == "modify:replace:a25e@a.py"  # printf 'a\ncA\nC' | md5sum


def test_normal_form_by_hand():
    assert normal("a\nb\nc", "A\nb\nC") == ("a\nc", "A\nC")
    assert normal("a\nb", "b\na") == ("a", "a")  # what moved is told, though both hold the same lines
    assert normal("a\nx\nb\ny", "x\na\nb\nz") != normal("y", "z")
    middle = [str(n) for n in range(400)]
    assert normal("\n".join(["a", *middle, "c"]), "\n".join(["A", *middle, "C"])) == ("a\nc", "A\nC")
    assert normal("", "a\n\nb\n") == ("", "a\n\nb")
    assert normal("\n", "a\n\nb") == ("", "a\n\nb")
    assert normal("    f(a)\n", "    f(a)\n    g(a)\n") == ("", "g(a)")
    assert normal("x", "x  ") == ("", "")


@given(
    st.lists(st.sampled_from("abcd"), max_size=8),
    st.lists(st.sampled_from("abcd"), max_size=8),
    st.lists(st.sampled_from("efg"), max_size=3),
    st.lists(st.sampled_from("efg"), max_size=3),
)
def test_text_around_an_edit_does_not_change_it(old, new, before, behind):
    around = ("\n".join([*before, *lines, *behind]) for lines in (old, new))
    assert normal(*around) == normal("\n".join(old), "\n".join(new))


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_the_difference_is_the_smallest(old, new):
    gone, put = (len(part.split("\n")) if part else 0 for part in normal("\n".join(old), "\n".join(new)))
    common = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            common[i + 1][j + 1] = common[i][j] + 1 if a == b else max(common[i][j + 1], common[i + 1][j])
    assert (gone, put) == (len(old) - common[-1][-1], len(new) - common[-1][-1])


# Patterns with groups.

V = ("sed -n '1,2p' a.py", "def f(v):\n    return int(v / 2)")
ROUNDED = {
    "str_replace": editor("str_replace", old_str="return int(v / 2)", new_str="return int(round(v / 2))"),
    "sed": "sed -i 's/int(\\(.*\\))/int(round(\\1))/' a.py",
    "sed, line": "sed -i '2s/int(\\(.*\\))$/int(round(\\1))/' a.py",
    "sed -E": "sed -i -E 's/int\\((.*)\\)/int(round(\\1))/' a.py",
    "sed, class": "sed -i 's|int([^)]*)|int(round(v / 2))|' a.py",
    "sed, &": "sed -i 's|v / 2|round(&)|' a.py",
    "sed, two": "sed -i 's/int(v/int(round(v/; 2s/$/)/' a.py",
    "perl": "perl -pi -e 's/int\\((.*)\\)/int(round($1))/' a.py",
    "perl, braces": "perl -pi -e 's{int\\((.*)\\)}{int(round($1))}' a.py",
    "perl, if": "perl -pi -e 's/int\\((.*)\\)/int(round($1))/ if $. == 2' a.py",
    "perl -0": "perl -0777 -pi -e 's/int\\((.*)\\)/int(round($1))/' a.py",
    "re.sub": script(
        "import re",
        "s = open('a.py').read()",
        "s = re.sub(r'int\\((.*)\\)', r'int(round(\\1))', s)",
        "open('a.py', 'w').write(s)",
    ),
    "compiled": script(
        "import re",
        "p = re.compile(r'int\\((.*)\\)')",
        "s = p.sub(r'int(round(\\g<1>))', open('a.py').read())",
        "open('a.py', 'w').write(s)",
    ),
    "awk": "awk -i inplace '{gsub(/v . 2/, \"round(&)\")}1' a.py",
}


@pytest.mark.parametrize("form", ROUNDED)
def test_a_pattern_with_groups_is_the_text_it_makes(form):
    key = digest("return int(v / 2)", "return int(round(v / 2))", 4)
    assert key == "a81e"
    _, actions = of(V, (ROUNDED[form], ""))
    assert actions[1] == f"modify:replace:{key}@a.py"
    # Known afterwards, so that a further edit meets too.
    _, more = of(V, (ROUNDED[form], ""), ("sed -i '2s| / 2| / 3|' a.py", ""))
    assert more[2] == f"modify:replace:{digest('return int(round(v / 2))', 'return int(round(v / 3))', 4)}@a.py"


def test_one_programme_makes_different_changes_of_different_lines():
    other = ("sed -n '1,2p' a.py", "def f(v):\n    return int(v / 4)")
    keys = {of(seen, (ROUNDED["sed"], ""))[1][1] for seen in (V, other)}
    assert len(keys) == 2


# Second edits.

MADE = ("cat > a.py <<'E'\nx = 1\ny = 2\nE", "")
SEED = "the file has been edited"
THREE = {
    "sed": ("sed -i 's/y = 2/y = 3/' a.py", ""),
    "sed by line": ("sed -i '2s/.*/y = 3/' a.py", ""),
    "sed $": ("sed -i '$s/2/3/' a.py", ""),
    "str_replace": (editor("str_replace", old_str="y = 2", new_str="y = 3"), SEED),
    "python": (script("s = open('a.py').read().replace('= 2', '= 3')", "open('a.py', 'w').write(s)"), ""),
    "patch": (
        "patch -p1 <<'E'\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+y = 3\nE",
        "patching file a.py",
    ),
    "whole": ("cat > a.py <<'E'\nx = 1\ny = 3\nE", ""),
    "through a file": ("sed 's/2/3/' a.py > b.py && mv b.py a.py", ""),
}
FOUR = {
    "sed": ("sed -i 's/3/4/' a.py", ""),
    "str_replace": (editor("str_replace", old_str="y = 3", new_str="y = 4"), SEED),
    "python": (script("s = open('a.py').read().replace('= 3', '= 4')", "open('a.py', 'w').write(s)"), ""),
}


@pytest.mark.parametrize("first", THREE)
@pytest.mark.parametrize("second", FOUR)
def test_a_second_edit_finds_what_the_first_left(first, second):
    _, actions = of(MADE, THREE[first], FOUR[second])
    assert actions[1] == f"modify:replace:{digest('y = 2', 'y = 3', 4)}@a.py"
    assert actions[2] == "modify:replace:0ce6@a.py"  # printf 'y = 3y = 4' | md5sum


def test_a_refused_edit_leaves_what_is_known():
    refused = (editor("str_replace", old_str="y = 9", new_str="y = 3"), "No replacement was performed, old_str")
    assert of(MADE, refused, THREE["sed"], FOUR["sed"])[1][3] == "modify:replace:0ce6@a.py"


def test_two_edits_on_one_line():
    _, actions = of(MADE, ("sed -i 's/2/3/' a.py && sed -i 's/3/4/' a.py", ""), ("sed -i 's/4/5/' a.py", ""))
    assert actions[2] == f"modify:replace:{digest('y = 4', 'y = 5', 4)}@a.py"


def test_contents_go_with_a_file_and_are_forgotten_with_it():
    edit = f"modify:replace:{digest('y = 2', 'y = 3', 4)}@b.py"
    for line in ("mv a.py b.py", "cp a.py b.py"):
        assert of(MADE, (line, ""), ("sed -i 's/2/3/' b.py", ""))[1][2] == edit
    for line in ("git checkout a.py", "git checkout .", "git stash", "rm a.py"):
        programme = ("sed -i 's/2/3/' a.py", "")
        assert of(MADE, (line, ""), programme)[1][2] == of(programme)[1][0]


def test_an_answer_that_contradicts_what_was_known_counts():
    changed = ("cat -n a.py | sed -n 2p", "     2\ty = 7")
    _, actions = of(MADE, ("python rewrite.py", ""), changed, ("sed -i 's/7/8/' a.py", ""))
    assert actions[3] == f"modify:replace:{digest('y = 7', 'y = 8', 4)}@a.py"
    # What else was known of the file is not: it may have moved.
    edit = ("sed -i 's/1/9/' a.py", "")
    assert of(MADE, ("python rewrite.py", ""), changed, edit)[1][3] == of(edit)[1][0]
    # Lines shown one after the other are known together.
    parts = [("cat -n a.py | sed -n 1p", "     1\tx"), ("cat -n a.py | sed -n 2p", "     2\ty")]
    assert of(*parts, ("sed -i 's/x/z/' a.py", ""))[1][2] == f"modify:replace:{digest('x', 'z', 4)}@a.py"


def test_an_insertion_whose_place_is_told_is_known_afterwards():
    put = (editor("insert", insert_line=1, new_str="w = 0"), SEED)
    assert of(MADE, put, ("sed -i '2s/0/9/' a.py", ""))[1][2] == f"modify:replace:{digest('w = 0', 'w = 9', 4)}@a.py"
    added = ("echo 'z = 3' >> a.py", "")
    assert of(MADE, added, ("sed -i '3s/3/4/' a.py", ""))[1][2] == f"modify:replace:{digest('z = 3', 'z = 4', 4)}@a.py"
