"""Which commands of a line ran and how each ended: by the shell's rules, worked by hand, and by a real shell."""

import subprocess

import pytest

from rtmc import Rollout, Step
from rtmc.signatures.commands import understood_command
from rtmc.signatures.outcomes import outcomes
from tests.swe_replays import call
from tests.test_signatures_swe import NONE, of, told

SED = "sed -i 's/x/y/' a.py"
TRACE = 'Traceback (most recent call last):\n  File "{}", line 1, in <module>\n    x\nNameError: name x'
ZZ = "ls: cannot access 'zz': No such file or directory"
FAILED, PASSED = "=== 1 failed in 0.1s ===", "=== 1 passed in 0.1s ==="
HERE = "python - <<'EOF'\np = 'a.py'\ns = open(p).read()\nopen(p, 'w').write(s.replace('x', 'y'))\nEOF\n"


def mini(status, output=""):
    return f"<returncode>{status}</returncode>\n<output>\n{output}\n</output>"


def brief(line, answer):
    """(action, state after, without the counts) of one command line."""
    states, actions = of((line, answer), hash_chars=0)
    return actions[0], states[-1].rpartition("(")[0].rstrip("|")


@pytest.mark.parametrize("join", [" && ", "; ", "\n"])
@pytest.mark.parametrize(
    "answer",
    [
        TRACE.format("/testbed/repro.py"),
        "Traceback (most recent call last):\nNameError: name x",
        mini(1, TRACE.format("/testbed/repro.py")),
        mini(1, "Traceback (most recent call last):\nNameError: name x"),
        mini(1),
        '{"returncode": 1, "output": "boom"}',
    ],
)
def test_an_edit_before_a_failing_run_is_done(join, answer):
    assert brief(f"{SED}{join}python repro.py", answer) == ("modify:replace@a.py", "a.py:M")
    made = f"cat > repro.py <<'EOF'\nx\nEOF\n{'' if join == chr(10) else 'true' + join}python repro.py"
    assert brief(made, answer) == ("create@repro.py", "repro.py:C,I")


@pytest.mark.parametrize(
    ("line", "answer", "action", "state"),
    [
        # an edit by a script, and a run
        (HERE + "python repro.py", mini(1, TRACE.format("repro.py")), "modify:replace@a.py", "a.py:M"),
        (HERE + "python repro.py", mini(0, TRACE.format("<stdin>")), "modify:replace@a.py:error", ""),
        (HERE, mini(1, TRACE.format("<stdin>")), "modify:replace@a.py:error", ""),
        (f"{SED} && python -m pytest", mini(1, FAILED), "modify:replace@a.py", "a.py:M"),
        # another command of the line failed
        (f"{SED}; ls zz", mini(2, ZZ), "modify:replace@a.py", "a.py:M"),
        ("rm r.py; ls zz", mini(2, ZZ), "fileop:delete@r.py", "r.py:D"),
        (f"{SED} && grep -n q a.py", mini(1), "modify:replace@a.py", "a.py:M,S"),
        (f"cd /testbed && {SED} && git diff --exit-code", mini(1, "diff --git"), "modify:replace@a.py", "a.py:M"),
        # the edit itself failed
        (
            "sed -i 's/x/y/' no.py; ls",
            "sed: can't read no.py: No such file or directory",
            "modify:replace@no.py:error",
            ".:S",
        ),
        (
            "sed -i 's/x/y/' no.py && pytest",
            mini(2, "sed: can't read no.py: No such file"),
            "modify:replace@no.py:error",
            "",
        ),
        (
            "cd /testbed && sed -i 's/x/y' a.py",
            mini(1, "sed: -e expression #1, char 5: unterminated"),
            "modify:replace@a.py:error",
            "",
        ),
        ("cat > d/a.py <<'E'\nx\nE", "bash: d/a.py: No such file or directory", "create@d/a.py:error", ""),
        ("sed -i 's/x/y/' a.py no.py", mini(2, "sed: can't read no.py: No such file"), "modify:replace@a.py", "a.py:M"),
        ("sed -i 's/x/y/' a.py", "bash: syntax error near unexpected token `('", "modify:replace@a.py:error", ""),
        # held back
        (f"pytest t.py && {SED}", FAILED, "test@t.py:error", ""),
        (f"pytest t.py && {SED}", PASSED, "modify:replace@a.py", "a.py:M"),
        (f"pytest t.py || {SED}", PASSED, "test@t.py:ok", ""),
        (f"false && {SED}", "", "execute:false@.:error", ""),
        (f"false || {SED}", "", "modify:replace@a.py", "a.py:M"),
        (f"true || {SED}", "", "execute:true@.:ok", ""),
        (f"false && {{ ls; {SED}; }}", "", "execute:false@.:error", ""),
        (f"if pytest t.py; then {SED}; fi", FAILED, "test@t.py:error", ""),
        (f"set -e; pytest t.py; {SED}", mini(1, FAILED), "test@t.py:error", ""),
        (f"! pytest t.py && {SED}", FAILED, "modify:replace@a.py", "a.py:M"),
        (f"bash -c 'false && {SED.replace(chr(39), chr(34))}'", "", "execute:false@.:error", ""),
        ("pytest a.py && pytest b.py", FAILED, "test@a.py:error", ""),
        ("grep -q x a.py && rm a.py", mini(1), "search@a.py", "a.py:S"),
        # folders that are not there
        ("cd no; cat a.py", "bash: cd: no: No such file or directory\nx", "view:full@a.py", "a.py:Vf"),
        ("cd no || cat a.py", "bash: line 1: cd: no: No such file or directory\nx", "view:full@a.py", "a.py:Vf"),
        ("cd no && cat a.py", "bash: cd: no: No such file or directory", "execute:cd@no:error", ""),
        ("cd src; cat a.py", "x", "view:full@src/a.py", "src/a.py:Vf"),
        # readers
        ("cat a.py no.py", "x\ncat: no.py: No such file or directory", "view:full@a.py", "a.py:Vf"),
        ("cat no.py; ls", "cat: no.py: No such file or directory\na.py", "search@.", ".:S"),
        ("cat a.py", "sed: a line of the file", "view:full@a.py", "a.py:Vf"),
    ],
)
def test_each_command_has_its_own_end(line, answer, action, state):
    assert brief(line, answer) == (action, state)


def test_a_folder_that_is_not_there_is_not_entered():
    states, _ = of(("cd no; ls", "bash: cd: no: No such file or directory"), ("cat a.py", "x"))
    assert states[-1] == f".:S|a.py:Vf|{NONE}"


SCRIPTS = [
    f"{a} {x} {b} {y} {c}"
    for x in ("&&", "||", ";")
    for y in ("&&", "||", ";")
    for a, b, c in (("true", "false", "true"), ("false", "true", "false"), ("false", "false", "true"))
]


@pytest.mark.parametrize("line", SCRIPTS)
def test_what_runs_is_what_a_shell_runs(line):
    words = line.split()
    traced = "".join(w if w in ("&&", "||", ";") else f" {{ echo {k} >&2; {w}; }} " for k, w in enumerate(words))
    shell = subprocess.run(["bash", "-c", traced], capture_output=True, text=True, check=False)
    ran = [int(k) // 2 for k in shell.stderr.split()]
    found = outcomes(understood_command(line), "", None)
    assert [k for k, outcome in enumerate(found) if outcome.ran] == ran


PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
CODEX = "*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n*** End Patch"


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (
            f"patch -p1 <<'E'\n{PATCH.format('a.py')}E",
            "patching file a.py\nHunk #1 FAILED at 1.\n1 out of 1 hunk FAILED",
        ),
        (f"patch -p1 <<'E'\n{PATCH.format('a.py')}E", "can't find file to patch at input line 3"),
        (f"git apply <<'E'\n{PATCH.format('a.py')}E", "error: patch failed: a.py:1\nerror: a.py: patch does not apply"),
        ([{"function": {"name": "apply_patch", "arguments": {"input": CODEX}}}], "apply_patch verification failed: x"),
        (call("shell", command=["apply_patch", CODEX]), '{"output": "no", "metadata": {"exit_code": 1}}'),
    ],
)
def test_refused_patches(action, answer):
    assert brief(action, answer) == ("modify:replace@a.py:error", "")
    assert brief(action, "Done!") == ("modify:replace@a.py", "a.py:M")


def test_of_a_patch_of_two_files_one_may_be_refused():
    answer = "patching file a.py\nHunk #1 FAILED at 1.\n1 out of 1 hunk FAILED\npatching file b.py"
    assert brief(f"patch -p1 <<'E'\n{PATCH.format('a.py')}{PATCH.format('b.py')}E", answer) == (
        "modify:replace@b.py",
        "b.py:M",
    )


@pytest.mark.parametrize(
    "line",
    ["git apply --check f.patch", f"git apply --stat <<'E'\n{PATCH.format('a.py')}E", "patch --dry-run -p1 < f.patch"],
)
def test_a_patch_that_is_only_tried_edits_nothing(line):
    action, state = brief(line, "")
    assert action.startswith("execute:")
    assert state == ""


def test_a_status_in_json_is_read():
    assert brief("python r.py", '{"output": "boom", "metadata": {"exit_code": 1}}')[0] == "execute@r.py:error"
    assert brief("python r.py", '{"output": "boom", "exit_code": 0}')[0] == "execute@r.py:ok"


# What nothing tells.


@pytest.mark.parametrize(
    ("line", "answer", "action"),
    [
        ("pytest tests", "", "test@tests"),
        ("pytest > out.log 2>&1", "", "test@."),
        ("pytest > out.log 2>&1", mini(1), "test@.:error"),
        ("pytest > out.log 2>&1; tail out.log", PASSED, "test@.:ok"),
        ("pytest tests | tail -1", mini(0, "x"), "test@tests"),
        ("python a.py > l 2>&1", "", "execute@a.py"),
        ("python a.py > l", "", "execute@a.py:ok"),
        ("python a.py", None, "execute@a.py"),
    ],
)
def test_no_evidence_is_no_result(line, answer, action):
    states, actions = of((line, answer))
    assert actions == [action]
    assert f"_pass_count={int(action.startswith('test') and action.endswith(':ok'))}" in states[-1]
    assert f"_fail_count={int(action.startswith('test') and action.endswith(':error'))}" in states[-1]


def asks(*calls):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": given}}
            for name, tool, given in calls
        ],
    }


def chat(*messages):
    record = {"task_id": "t", "rollout_id": "r", "messages": [{"role": "user", "content": "go"}, *messages]}
    found = Rollout.from_json(record)
    again = Rollout.from_json(found.to_json())
    assert again == found
    assert [step.replies for step in again.steps] == [step.replies for step in found.steps]
    return told(found, hash_chars=0)


def test_a_call_without_an_answer_has_no_result():
    states, actions = chat(
        asks(("1", "bash", {"command": "pytest tests"})),
        asks(("2", "bash", {"command": "python a.py"})),
        asks(("3", "bash", {"command": "python b.py"})),
        {"role": "tool", "tool_call_id": "3", "content": ""},
    )
    assert actions == ["test@tests", "execute@a.py", "execute@b.py:ok"]
    assert states[-1] == NONE


EDIT = {"command": "str_replace", "old_str": "a", "new_str": "b"}
BOTH = asks(("1", "editor", {**EDIT, "path": "/testbed/a.py"}), ("2", "editor", {**EDIT, "path": "/testbed/b.py"}))
NO, YES = "No replacement was performed, old_str", "The file has been edited."


@pytest.mark.parametrize(
    "replies",
    [
        [{"role": "tool", "tool_call_id": "1", "content": NO}, {"role": "tool", "tool_call_id": "2", "content": YES}],
        [{"role": "tool", "tool_call_id": "2", "content": YES}, {"role": "tool", "tool_call_id": "1", "content": NO}],
        [{"role": "tool", "content": NO}, {"role": "tool", "content": YES}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "is_error": True, "content": "x"},
                    {"type": "tool_result", "tool_use_id": "2", "content": YES},
                ],
            }
        ],
    ],
    ids=["by id", "other order", "by order", "parts"],
)
def test_each_of_several_calls_has_its_own_reply(replies):
    states, actions = chat(BOTH, *replies)
    assert actions == ["modify:replace@b.py"]
    assert states[-1] == f"b.py:M|{NONE}"


def test_a_call_that_the_log_marks_as_failed():
    use = {"type": "tool_use", "id": "x", "name": "Edit"}
    use["input"] = {"file_path": "/testbed/a.py", "old_string": "a", "new_string": "b"}
    result = {"type": "tool_result", "tool_use_id": "x", "content": "File has not been read yet."}
    ask = {"role": "assistant", "content": [use]}
    assert chat(ask, {"role": "user", "content": [{**result, "is_error": True}]})[1] == ["modify:replace@a.py:error"]
    assert chat(ask, {"role": "user", "content": [result]})[1] == ["modify:replace@a.py"]
    ran = asks(("1", "bash", {"command": "python a.py"}))
    assert chat(ran, {"role": "tool", "tool_call_id": "1", "content": "x", "status": "error"})[1] == [
        "execute@a.py:error"
    ]


# git.


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([("git restore --staged a.py", "")], "a.py:M"),
        ([("git reset a.py", "")], "a.py:M"),
        ([("git stash", "No local changes to save")], "a.py:M"),
        ([("git stash", "Saved working directory")], ""),
        ([("git restore a.py", "")], ""),
        ([("git commit -am x", "[main 1] x"), ("git checkout a.py", "")], "a.py:M"),
        ([("git add -A && git commit -m x", "[main 1] x"), ("git reset --hard", "")], "a.py:M"),
        ([("git commit -m x", "no changes added to commit"), ("git checkout a.py", "")], ""),
        ([("git add a.py", ""), ("git checkout a.py", "")], "a.py:M"),
        ([("git add a.py", ""), ("git checkout HEAD -- a.py", "")], ""),
        ([("git add a.py", ""), ("git restore --staged a.py", ""), ("git checkout a.py", "")], ""),
        ([("git commit -am x", "[main 1] x"), ("git reset --hard HEAD~1", "")], ""),
        ([("git commit -am x", "[main 1] x"), ("rm a.py", ""), ("git checkout a.py", "")], "a.py:M"),
        ([("rm a.py", ""), ("git checkout a.py", "")], ""),
        ([("echo x > b.py", ""), ("git checkout .", "")], "b.py:C,I"),
        ([("echo x > b.py && git add b.py", ""), ("git checkout .", "")], "b.py:C,I"),
        ([("echo x > b.py && git add b.py", ""), ("git reset --hard", "")], ""),
    ],
)
def test_what_git_takes_back(steps, state):
    states, _ = of((SED, ""), *steps, hash_chars=0)
    assert states[-1].rpartition("(")[0].rstrip("|") == state


def test_a_later_edit_is_taken_back_and_the_committed_one_stays():
    states, _ = of((SED, ""), ("git commit -am x", "[main 1]"), ("sed -i 's/p/q/' a.py", ""), ("git checkout a.py", ""))
    assert states[4] == states[1] != states[3]
    assert Step("", "").replies is None
