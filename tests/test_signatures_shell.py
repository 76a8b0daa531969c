"""What shell command lines do, by hand-worked cases: pipelines, redirects, heredocs, and effects on files."""

import pytest

from rtmc.signatures.commands import understood_command
from rtmc.signatures.edits import patch_effects
from rtmc.signatures.scripts import python_effects
from rtmc.signatures.sed import sed_change
from rtmc.signatures.shell import parse_shell

BODY = "\n    indented $x\n\nimport os\n"


def words(line):
    return [[command.words for command in pipeline] for pipeline in parse_shell(line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 'b c' \"d $e\" f\\ g", [[["a", "b c", "d $e", "f g"]]]),
        ("a && b || c; d & e", [[["a"]], [["b"]], [["c"]], [["d"]], [["e"]]]),
        ("a | b | c", [[["a"], ["b"], ["c"]]]),
        ("a && b 2>&1 | c", [[["a"]], [["b"], ["c"]]]),
        ("(a; b) && { c; }", [[["a"]], [["b"]], [["c"]]]),
        ('X=1 a; F=x.py; a $F ${F}.bak "$F"', [[["a"]], [["a", "x.py", "x.py.bak", "x.py"]]]),
        ("if a; then b; else c; fi", [[["a"]], [["b"]], [["c"]]]),
        ("for f in 1 2; do a $f; done", [[["a", "1"]], [["a", "2"]]]),
        ("for f; do a $f; done", [[["a", "$f"]]]),
        ("f() { rm x; }", []),
        ("a 'it'\\''s' $'x\\ty'", [[["a", "it's", "x\ty"]]]),
        ("# nothing", []),
        ("a && (", [[["a"]]]),
        ("", []),
    ],
)
def test_words(line, expected):
    assert words(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        f"cat > f.py <<'EOF'\n{BODY}EOF",
        f"cat <<'EOF' > f.py\n{BODY}EOF\n",
        f"cat << EOF >f.py && ls\n{BODY}EOF",
        f"tee f.py <<EOF\n{BODY}EOF",
        f"cat <<EOF | tee f.py > /dev/null\n{BODY}EOF",
    ],
)
def test_a_heredoc_into_a_file_creates_it_with_its_text(line):
    created = [e for e in understood_command(line).effects if e.category == "create"]
    assert [(e.path, e.new) for e in created] == [("f.py", BODY)]


def brief(line):
    """(category, path, scope or lines) of the effects that say something of the step's class."""
    found = understood_command(line)
    return [
        f"{e.category} {e.path} {e.lines[0]}-{e.lines[1]}" if e.lines else f"{e.category} {e.path} {e.scope}".rstrip()
        for e in found.effects
        if not e.aside
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # looking
        ("cat a.py", ["view a.py full"]),
        ("cat a.py b.py", ["view a.py full", "view b.py full"]),
        ("sed -n 10,40p a.py", ["view a.py 10-40"]),
        ("sed -n '10,$p' a.py", ["view a.py 10--1"]),
        ("sed -ne '5p' -e '90,110p' a.py", ["view a.py 5-110"]),
        ("cat -n a.py | sed -n '10,40p'", ["view a.py 10-40"]),
        ("nl -ba a.py | sed -n '10,40p' | head -5", ["view a.py 10-14"]),
        ("head -60 a.py | tail -n 20", ["view a.py 41-60"]),
        ("head -n 5 a.py", ["view a.py 1-5"]),
        ("head a.py", ["view a.py 1-10"]),
        ("tail -n +30 a.py | head -10", ["view a.py 30-39"]),
        ("tail -20 a.py", ["view a.py -20--1"]),
        ("awk 'NR>=10 && NR<20' a.py", ["view a.py 10-19"]),
        ("cat < a.py", ["view a.py full"]),
        ("cat a.py | grep -n x", ["search a.py"]),
        ("grep -rn 'a b' src/ --include=*.py | head -20", ["search src/"]),
        ("rg -n x", ["search "]),
        ("find src -name '*.py' | xargs grep -l foo", ["search src"]),
        ("find . -type f -name fields.py", ["search ."]),
        ("ls -la src", ["search src"]),
        ("git diff HEAD -- a.py", ["view a.py git-diff"]),
        ("git log --oneline -3", ["view :/ git-log"]),
        ("git grep foo -- src", ["search src"]),
        # changing
        ("sed -i 's/a/b/' a.py", ["modify a.py sed"]),
        ("sed -i.bak -e 's/a/b/' a.py b.py", ["modify a.py sed", "modify b.py sed"]),
        ("echo x >> a.py", ["modify a.py insert"]),
        ("echo x > a.py", ["create a.py overwrite"]),
        ("printf 'x' | tee -a a.py", ["modify a.py insert"]),
        ("> a.py", ["create a.py overwrite"]),
        ("touch a.py", ["create a.py touch"]),
        ("git apply fix.patch", ["modify  patch"]),
        ("patch -p1 <<'EOF'\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\nEOF", ["modify x.py replace"]),
        ("git checkout -- a.py", ["fileop a.py revert"]),
        ("git checkout a.py", ["fileop a.py revert"]),
        ("git restore src", ["fileop src revert"]),
        ("git stash", ["fileop :/ revert"]),
        ("git checkout main", ["execute :/ git-checkout"]),
        ("rm -rf a.py b", ["fileop a.py delete", "fileop b delete"]),
        ("mv a.py b.py", ["fileop a.py move"]),
        ("cp -r a b", ["fileop a copy"]),
        ("mkdir -p x/y", ["fileop x/y mkdir"]),
        ("chmod +x a.sh", []),
        ("truncate -s 0 a.sh", ["fileop a.sh mode"]),
        ("find . -name '*.pyc' -delete", ["fileop . delete"]),
        ("python - <<'EOF'\nopen('a.py', 'w').write('x')\nEOF", ["create a.py overwrite"]),
        # running
        ("pytest tests/test_a.py::T::test_b -k 'x and y' -q", ["test tests/test_a.py"]),
        ("python -m pytest -x --tb=short tests/", ["test tests/"]),
        ("python -m pytest", ["test "]),
        ("python3 -m unittest tests.test_a.Case.test_b", ["test tests/test_a.py"]),
        ("tox -e py311", ["test "]),
        ("make test", ["test "]),
        ("make -C docs html", ["execute  make-html"]),
        ("npm run test", ["test "]),
        ("./tests/runtests.py admin_views --parallel 1", ["test admin_views"]),
        ("python manage.py test app", ["test app"]),
        ("python tests/test_a.py", ["test tests/test_a.py"]),
        ("python reproduce.py arg", ["execute reproduce.py"]),
        ("PYTHONPATH=. timeout 60 python -u reproduce.py 2>&1 | tail -3", ["execute reproduce.py"]),
        ("python -c 'print(1)'", ["execute  python"]),
        ("./run.sh", ["execute ./run.sh"]),
        ("pip install -e .", ["install ."]),
        ("python -m pip install 'numpy>=2' --quiet", ["install numpy"]),
        ("apt-get install -y gcc", ["install gcc"]),
        ("coverage run -m pytest tests", ["test tests"]),
        ("bash -lc 'cat a.py'", ["view a.py full"]),
        ("env X=1 uv run pytest a", ["test a"]),
        # several
        ("cd src && sed -n 1,5p a.py && pytest ../tests", ["view src/a.py 1-5", "test src/../tests"]),
        ("(cd src; cat a.py); cat b.py", ["view src/a.py full", "view b.py full"]),
        ("pytest t > log.txt 2>&1; cat log.txt", ["test t", "view log.txt full"]),
        ("echo '== a'; cat a.py", ["view a.py full"]),
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff --cached", ["finish", "view :/ git-diff"]),
        ("frobnicate --x", ["execute  frobnicate"]),
    ],
)
def test_effects(line, expected):
    assert brief(line) == [text.rstrip() for text in expected]


def test_the_folder_after_a_line():
    assert understood_command("cd a && cd b && ls").folder == "a/b"
    assert understood_command("(cd a && ls)").folder == ""
    assert understood_command("cd /x; cd -").folder == "/x"


@pytest.mark.parametrize(
    ("programme", "expected"),
    [
        ("s/one/two/", {2: "two one", 3: "a x.y"}),
        ("s/one/two/g", {2: "two two", 3: "a x.y"}),
        ("s/one/two/2", {2: "one two", 3: "a x.y"}),
        ("3s|x.y|[&]|", {2: "one one", 3: "a [x.y]"}),
        ("3s/x\\.y/z\\/w/", {2: "one one", 3: "a z/w"}),
        ("2s/.*/new line/", {2: "new line", 3: "a x.y"}),
        ("s/\\(a\\) x/\\1/", {2: "one one", 3: "a.y"}),
        ("2d", {2: "a x.y"}),
        ("2,3d", {}),
        ("2!d", {2: "one one"}),
        ("3c\\    c", {2: "one one", 3: "    c"}),
        ("3a\\\nnext", {2: "one one", 3: "a x.y", 4: "next"}),
        ("2i\\\nnext", {2: "next", 3: "one one", 4: "a x.y"}),
        ("s/absent/x/", None),
        ("9s/a/b/", None),
        ("s/(a+)+$/b/", None),
        ("s/a/b", None),
    ],
)
def test_sed_on_known_lines(programme, expected):
    assert sed_change(programme, {2: "one one", 3: "a x.y"}) == expected


def test_patches():
    git = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n keep\n-old\n+new\n"
    added = "diff --git a/n.py b/n.py\n--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+text\n"
    gone = "--- a/d.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\n"
    told = [(e.category, e.path, e.old, e.new) for e in patch_effects(git + added + gone)]
    assert told == [("modify", "x.py", "old", "new"), ("create", "n.py", None, "text"), ("fileop", "d.py", None, None)]
    sections = "*** Begin Patch\n*** Update File: x.py\n@@\n-old\n+new\n*** Add File: n.py\n+text\n"
    sections += "*** Delete File: d.py\n*** End Patch"
    assert [(e.category, e.path, e.old, e.new) for e in patch_effects(sections)] == told


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('a', 'w').write('x')", [("create", "a", None, "x")]),
        ("with open('a', 'w') as f:\n    f.write('x')\n    f.write('y')", [("create", "a", None, "xy")]),
        (
            "from pathlib import Path\np = Path('a')\np.write_text(p.read_text().replace('o', 'n'))",
            [("modify", "a", "o", "n")],
        ),
        ("s = open('a').read()\ns = s.replace('o', 'n')\nopen('a', 'w').write(s)", [("modify", "a", "o", "n")]),
        ("open('a', mode='a').write('x')", [("modify", "a", None, "x")]),
        ("import os\nos.remove('a')", [("fileop", "a", None, None)]),
        ("open(name, 'w').write('x')", []),
        ("open('a').read()", []),
        ("def broken(", []),
    ],
)
def test_python_that_writes(code, expected):
    assert [(e.category, e.path, e.old, e.new) for e in python_effects(code)] == expected
