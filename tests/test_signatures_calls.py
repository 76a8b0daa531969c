"""Calls in the syntax of each tool, and what cannot be read as one."""

import pytest

from rtmc import Step
from rtmc.signatures.swe import SweSignature
from tests.swe_replays import call

DIFF = "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE"
ROO = DIFF.replace("old", ":start_line:1\n-------\nold")
EDITED = "modify:replace:95bb@src/a.py"  # echo -n oldnew | md5sum


@pytest.mark.parametrize(
    ("text", "key"),
    [
        # Cline and Roo
        (
            "<write_to_file>\n<path>src/a.py</path>\n<content>\nx = '</b>'\n</content>\n</write_to_file>",
            "create:7b7d@src/a.py",
        ),  # printf "x = '</b>'" | md5sum
        (f"Now.\n<replace_in_file>\n<path>src/a.py</path>\n<diff>\n{DIFF}\n</diff>\n</replace_in_file>", EDITED),
        (
            f"<apply_diff>\n<path>src/a.py</path>\n<diff>\n{ROO}\n</diff>\n</apply_diff>",
            EDITED,
        ),
        ("I look.\n<read_file>\n<path>src/a.py</path>\n</read_file>", "view:full@src/a.py"),
        (
            "<execute_command>\n<command>pytest t.py</command>\n<approval>false</approval>\n</execute_command>",
            "test@t.py",
        ),
        ("<search_files>\n<path>src</path>\n<regex>x</regex>\n</search_files>", "search@src"),
        ("<attempt_completion>\n<result>done</result>\n</attempt_completion>", "finish"),
        ("Use the <path> tag.", "think"),
        # OpenHands
        ("<execute_ipython>\nopen_file('/workspace/p/src/a.py', 210)\n</execute_ipython>", "view:partial[2]@src/a.py"),
        (
            "<execute_ipython>\nedit_file_by_replace('src/a.py', 'old', new_content='new')\n</execute_ipython>",
            EDITED,
        ),
        ("<execute_ipython>\ncreate_file('src/a.py')\n</execute_ipython>", "create@src/a.py"),
        ("<execute_ipython>\nprint(1)\n</execute_ipython>", "execute:python@."),
    ],
)
def test_tools_in_text(text, key):
    assert SweSignature().action(Step("", text)) == key


@pytest.mark.parametrize("diff", [DIFF, "------- SEARCH\nold\n=======\nnew\n+++++++ REPLACE"])
def test_search_and_replace_blocks_in_a_call(diff):
    assert SweSignature().action(Step("", "", tool_calls=call("replace_in_file", path="src/a.py", diff=diff))) == EDITED


def test_arguments_that_were_cut_off_are_kept_as_their_text():
    def key(arguments):
        step = Step("", "", answer="error", tool_calls=[{"function": {"name": "bash", "arguments": arguments}}])
        return SweSignature().action(step)

    cut, other = key('{"command": "ls'), key('{"command": "rm')
    assert cut != other
    assert cut.startswith("execute:text-")
    assert cut.endswith("@.")  # whether it ran is not known
    assert cut == key('{"command": "ls')
    assert key("ls src") == "search@src"  # no JSON at all: the command itself


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("conda install -y -c conda-forge numpy", "install@numpy"),
        ("conda activate testbed", "execute:conda@."),
        ("uv pip install x", "install@x"),
        ("bin/test", "test@bin/test"),
        ("python bin/test tests", "test@bin/test"),
        ("test -f a.py", "execute:test@."),
        ("hatch run test", "test@."),
        ("poetry run pytest tests", "test@tests"),
        ("docker exec c pytest tests", "test@tests"),
        ("docker exec -it -w /testbed c bash -lc 'pytest tests'", "test@tests"),
        ("docker compose exec web python a.py", "execute@a.py"),
        ("ed -s f.py <<'E'\n1d\nwq\nE", "modify:replace@f.py"),
        ("ed -s f.py <<'E'\n1p\nq\nE", "execute:ed@."),
        ("ex -sc '1d|x' f.py", "modify:replace@f.py"),
        ("vim -c '%s/a/b/' -c wq f.py", "modify:replace@f.py"),
        ("ruby -i -pe 'gsub(1, 2)' f.py", "modify:replace@f.py"),
        ("perl -ne 'print if /x/' f.py", "execute:perl@."),
        ("perl -Mstrict -e 'print 1'", "execute:perl@."),
        ("dd of=f.py if=g", "create@f.py"),
        ("install -m 755 a.sh b.sh", "fileop:copy@a.sh"),
        ("cp -t dir a.sh", "fileop:copy@a.sh"),
        ('for f in a.py b.py; do sed -i s/x/y/ "$f"; done', "modify:replace@a.py"),
        ("for f in $(grep -rl foo src); do sed -i s/x/y/ $f; done", "modify:replace@src"),
        ("while read f; do sed -i s/x/y/ $f; done < list", "modify:replace@."),
        ("grep -rl foo src | xargs sed -i 's/x/y/'", "modify:replace@src"),
        ("find src -name '*.py' -print0 | xargs -0 -I{} sed -i 's/x/y/' {}", "modify:replace@src"),
        ("git ls-files | xargs grep -l foo", "search@."),
        ("xargs rm < list", "fileop:delete@."),
        ("echo a.py | xargs cat", "view:full@a.py"),
        ("sed -n '5,+100p' a.py", "view:partial[0-1]@a.py"),
        ("awk 'NR==120,NR==230' a.py", "view:partial[1-2]@a.py"),
        ("sed -n '/a/,/b/p' a.py", "view:partial@a.py"),
        ("tree -L 2", "search@."),
        ("rg --files src", "search@src"),
        # lines by a pager's words, by ranges, by what is left out
        ("less +1457 a.py", "view:partial[14-end]@a.py"),
        ("less +1457 a.py | head -100", "view:partial[14-15]@a.py"),
        ("less -N a.py", "view:full@a.py"),
        ("more +120 a.py", "view:partial[1-end]@a.py"),
        ("bat -r 1:50 a.py", "view:partial[0]@a.py"),
        ("bat --line-range=120:230 --style plain a.py", "view:partial[1-2]@a.py"),
        ("bat -r :50 a.py", "view:partial[0]@a.py"),
        ("bat -n a.py", "view:full@a.py"),
        ("sed '120,230!d' a.py", "view:partial[1-2]@a.py"),
        ("sed -n '/foo/p' a.py", "search@a.py"),
        ("awk -v n=3 'NR>=120 && NR<=230' a.py", "view:partial[1-2]@a.py"),
        ("perl -ne 'print if 120..230' a.py", "view:partial[1-2]@a.py"),
        ("perl -ne 'print if $. >= 120 && $. <= 230' a.py", "view:partial[1-2]@a.py"),
        ("python -c \"print(open('a.py').read())\"", "view:full@a.py"),
        ("python3 -c \"from pathlib import Path; print(Path('a.py').read_text())\"", "view:full@a.py"),
        ("python -c \"print(''.join(open('a.py').readlines()[119:230]))\"", "view:partial[1-2]@a.py"),
        ("python -c \"print(eval(open('a.py').read()))\"", "execute:python@."),
        ("python -c \"import a; print(open('a.py').read()); a.run()\"", "execute:python@."),
        # files rewritten in place, or through another one
        ("awk -i inplace '{print $1}' a.py", "modify:replace@a.py"),
        ("awk '{print $1}' a.py > tmp && mv tmp a.py", "modify:replace@a.py"),
        ("sed 's/a/b/' a.py > /tmp/x && mv /tmp/x a.py", "modify:replace@a.py"),
        ("cd d && grep -v x a.py > t; cp t a.py", "modify:replace@d/a.py"),
        ("sed 's/a/b/' a.py > tmp && mv tmp b.py", "fileop:move@tmp"),
        # a changed copy of a file is a new file; what a command found or did, kept in a file, is what it found or did
        ("sed 's/a/b/' a.py > b.py", "create@b.py"),
        ("sed 's/a/b/' a.py | tee b.py", "create@b.py"),
        ("head -5 a.py > b.py", "create@b.py"),
        ("awk '{print}' a.py > src/b.py", "create@src/b.py"),
        ("cut -f1 a.tsv | sort > names.txt", "create@names.txt"),
        ("sort a.txt > b.txt", "create@b.txt"),
        ("sed -n 1,9p a.py 2> err.txt", "view:partial[0]@a.py"),
        ("sed -n 1,9p a.py > /dev/null", "view:partial[0]@a.py"),
        ("sed -n 1,9p a.py > /tmp/part", "view:partial[0]@a.py"),
        ("grep -rn x src > found.txt", "search@src"),
        ("git diff > my.patch", "view:git-diff@."),
        ("pytest t > log.txt 2>&1", "test@t"),
        # a runner that is asked runs no test
        ("pytest --version", "execute:test-runner@."),
        ("python -m pytest tests --collect-only -q", "execute:test-runner@."),
        ("python -m pytest --fixtures", "execute:test-runner@."),
        ("tox --version", "execute:test-runner@."),
        ("python -m unittest --help", "execute:test-runner@."),
        ("pytest -V", "execute:test-runner@."),
        ("tox -l", "execute:test-runner@."),
        ("tox -c tox.ini list", "execute:test-runner@."),
        ("nox --list", "execute:test-runner@."),
        ("ctest -N", "execute:test-runner@."),
        ("vitest list", "execute:test-runner@."),
        ("python manage.py test --help", "execute:test-runner@."),
        ("./tests/runtests.py -h", "execute:test-runner@."),
        ("python tests/test_a.py --help", "execute:test-runner@."),
        ("make -n test", "execute:make-dry@."),
        ("make -C d -kn test", "execute:make-dry@."),
        ("cargo test --no-run", "execute:cargo-dry@."),
        ("go test -list .", "execute:go-dry@."),
        ("mvn test -DskipTests", "execute:mvn-dry@."),
        ("pip install --dry-run x", "execute:pip@."),
        ("python -m pip install --help", "execute:pip@."),
        # the same letters, and a test all the same
        ("pytest -l -n 4 t", "test@t"),
        ("pytest -k list t", "test@t"),
        ("tox -e py -- -l", "test@."),
        ("tox -- -k list", "test@."),
        ("ctest -V", "test@."),
        ("make -s -C nn test", "test@."),
        ("go test -v ./...", "test@."),
        ("make test", "test@."),
        ("pytest -q --cov-fail-under=3 t", "test@t"),
        ("find . -name r.py -delete", "fileop:delete@./r.py"),
        ("find src -name '*.pyc' -delete", "fileop:delete@src"),
        # folders and programs
        ("pushd d >/dev/null && cat f && popd >/dev/null", "view:full@d/f"),
        ("pushd d; popd; cat f", "view:full@f"),
        ("uv run r.py", "execute@r.py"),
        ("python < r.py", "execute@r.py"),
        ("python -m cProfile -o out r.py", "execute@r.py"),
        ("python -m pdb -c c r.py", "execute@r.py"),
        ("ipython r.py", "execute@r.py"),
        ("chmod +x r.py && ./r.py", "execute@r.py"),
        ("git ls-files src", "search@src"),
    ],
)
def test_commands(line, key):
    expected = key.replace("@./", "@")
    assert SweSignature(hash_chars=0).action(Step("", "", tool_calls=call("bash", command=line))) == expected


def test_every_file_of_a_loop_is_changed():
    from tests.test_signatures_swe import NONE, of

    states, _ = of(('for f in a.py b.py; do sed -i s/x/y/ "$f"; done', ""), hash_chars=0)
    assert states[-1] == f"a.py:M|b.py:M|{NONE}"


def test_lines_that_a_pattern_chose_are_told_by_their_numbers():
    from tests.test_signatures_swe import of

    assert of(("cat -n a.py | sed -n '/a/,/b/p'", "   210\tx\n   211\ty"))[1] == ["view:partial[2]@a.py"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("printf '%s\\n' 'x = 1' 'y = 2'", "x = 1\ny = 2\n"),
        ("printf 'x = %s\\n' 1 2", "x = 1\nx = 2\n"),
        ("printf 'x = 1\\ny = 2\\n'", "x = 1\ny = 2\n"),
        ("printf '100%%\\n'", "100%\n"),
        ("printf '%b' 'a\\tb'", "a\tb"),
        ("printf 'none %s %s' a", "none a "),
        ("printf '%5d' 3", None),
        ("echo 'a\\nb'", "a\\nb\n"),
        ("echo -e 'a\\nb'", "a\nb\n"),
        ("echo -n a  b", "a b"),
        ("cat f", None),
    ],
)
def test_what_a_command_prints(command, text):
    from rtmc.signatures.printed import printed
    from rtmc.signatures.shell import parse_shell

    assert printed(parse_shell(command)[0][0]) == text


def test_a_rewrite_shows_nothing_and_leaves_no_other_file():
    from tests.test_signatures_swe import NONE, of

    states, actions = of(("sed 's/a/b/' f.py > t && mv t f.py", ""))
    assert states[-1] == f"f.py:M:187e|{NONE}"
    assert actions == of(("sed -i 's/a/b/' f.py", ""))[1]
    assert of(("""awk '{gsub(/a/, "b")}1' f.py > t && mv t f.py""", ""))[1] == actions
