"""`swe`: one fix told in ten tool formats meets in every state, real logs agree, and no text breaks it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtmc import Rollout, SignatureError, Step, tabulate
from rtmc.signatures import get_signature
from rtmc.signatures.changes import digest, normal
from rtmc.signatures.effects import CLASSES
from rtmc.signatures.keys import word_set
from rtmc.signatures.paths import Place
from rtmc.signatures.swe import SweSignature
from rtmc.signatures.worktree import Worktree
from tests.swe_replays import FORMATS, PASSED, call, rollout

ROOT = Path(__file__).resolve().parents[1]
NONE = "(test_fail_count=0,test_pass_count=0,think_count=0)"


def told(found, signature="swe", **options):
    """(states before each step and after the last, actions) as a table would hold them."""
    signature = get_signature(signature, **options)
    state = signature.state(found)
    states, actions = [state.key()], []
    for step in found.steps:
        actions.append(state.action(step))
        state.update(step)
        states.append(state.key())
    return states, actions


def of(*steps, prompt="", **options):
    """The same for (action, answer) pairs, an action being a command line or a list of tool calls."""
    made = [
        Step("", "", answer=answer, tool_calls=action if isinstance(action, list) else call("bash", command=action))
        for action, answer in steps
    ]
    made[0].observation = prompt
    return told(Rollout("t", "r", made), **options)


# One fix in ten formats.


@pytest.mark.parametrize("chars", [0, 4])
@pytest.mark.parametrize("form", FORMATS)
def test_formats_meet_at_the_same_milestones(form, chars):
    first, _ = told(rollout(FORMATS["named_editor"]()), hash_chars=chars)
    states, actions = told(rollout(FORMATS[form]()), hash_chars=chars)
    milestones = list(dict.fromkeys(states))
    # An editor that creates a file empty and fills it has one state more.
    extra = [key for key in milestones if key not in first]
    assert [key for key in milestones if key in first] == list(dict.fromkeys(first))
    assert len(extra) <= 1
    assert all("repro.py:C|" in key for key in extra)
    kept = [a for a in actions if not a.startswith(("view:cursors", "modify:insert"))]
    classes = " ".join(re.split("[:@]", a)[0] for a in kept)
    assert classes == "search create execute view modify modify execute test fileop finish"
    assert [a.rpartition("@")[2] for a in kept] == [
        ".",
        "repro.py",
        "repro.py:ok",
        "src/clock.py",
        "src/clock.py:error",
        "src/clock.py",
        "repro.py:ok",
        "tests/test_clock.py:ok",
        "repro.py",
        "finish",
    ]


def test_what_is_written_for_one_of_them():
    states, actions = told(rollout(FORMATS["named_editor"]()))
    change = digest("return int(total / unit)", "return int(round(total / unit))", 4)
    assert actions[5] == f"modify:replace:{change}@src/clock.py"
    script = digest("", 'from clock import span\n\nprint(span("1.9s"))', 4)
    flags = "(test_fail_count=0,test_pass_count=1,think_count=0)"
    assert states[8] == f".:S|repro.py:C,I:{script}|src/clock.py:M:{change},V[1]|{flags}"


def test_an_edit_elsewhere_is_another_state():
    other = FORMATS["named_editor"]()
    path = "/testbed/src/other.py"
    other[5] = ("", call("str_replace_editor", command="str_replace", path=path, old_str="a", new_str="b"), "edited")
    assert told(rollout(other))[0][6] not in told(rollout(FORMATS["mini"]()))[0]


def test_a_refused_edit_leaves_the_state_alone():
    for form in FORMATS.values():
        states, actions = told(rollout(form()))
        refused = [place for place, action in enumerate(actions) if action.endswith(":error")]
        assert len(refused) == 1
        assert actions[refused[0]].startswith("modify:")
        assert states[refused[0]] == states[refused[0] + 1]


# Real logs.


@pytest.fixture
def replays(shared):
    from rtmc import read_rollouts

    folder = shared / "data" / "sweagent"
    names = ("marshmallow-1867.replace", "marshmallow-1867.windowed")
    return [next(iter(read_rollouts(folder / f"{name}.traj"))) for name in names]


def test_two_logs_of_one_fix_agree_step_by_step(replays):
    (states, actions), (others, other_actions) = (told(found, hash_chars=0) for found in replays)
    assert actions == other_actions
    assert states == others
    assert actions[6:8] == [
        "modify:replace@src/marshmallow/fields.py:error",
        "modify:replace@src/marshmallow/fields.py",
    ]
    assert actions[5] == "view:partial[14-15]@src/marshmallow/fields.py"
    assert states[6] == states[7] != states[8]


def test_their_hashes_differ_as_the_fixes_do(replays):
    (_, actions), (_, others) = map(told, replays)
    same = [a == b for a, b in zip(actions, others, strict=True)]
    assert same == [True] * 6 + [False, False] + [True] * 3


def test_refused_edits_of_a_real_log(shared):
    from rtmc import read_rollouts

    found = next(iter(read_rollouts(shared / "data" / "sweagent" / "pydicom-1458.windowed.traj")))
    states, actions = told(found)
    target = "pydicom/pixel_data_handlers/numpy_handler.py"
    assert [a.endswith(f"@{target}:error") for a in actions] == [place in (5, 6, 7) for place in range(12)]
    assert len(set(states[5:9])) == 1
    assert actions[2] == "execute@reproduce_bug.py:error"
    assert actions[9] == "execute@reproduce_bug.py:ok"
    assert not any("pydicom__pydicom" in key for key in states)


# Single rules.


def test_views_are_buckets_of_lines():
    def view(low, high, **options):
        step = Step(
            "",
            "",
            tool_calls=call("str_replace_editor", command="view", path="/testbed/core.py", view_range=[low, high]),
        )
        return SweSignature(**options).action(step)

    assert view(100, 299) == "view:partial[1-2]@core.py"
    assert view(1, 99) == "view:partial[0]@core.py"
    assert view(200, 299) == "view:partial[2]@core.py"
    assert view(1, -1) == "view:full@core.py"
    assert view(450, -1) == "view:partial[4-end]@core.py"
    assert view(100, 299, bucket=50) == "view:partial[2-5]@core.py"


def test_a_change_is_hashed_as_md5_of_old_and_new():
    # echo -n ab | md5sum
    edit = call("str_replace_editor", command="str_replace", path="/testbed/f.py", old_str="a", new_str="b")
    for chars, scope in ((4, "replace:187e"), (6, "replace:187ef4"), (0, "replace")):
        assert SweSignature(hash_chars=chars).action(Step("", "", tool_calls=edit)) == f"modify:{scope}@f.py"


def test_the_normal_form_of_a_change():
    assert normal("  a\n  b\n  c", "  a\n  x\n  c") == ("b", "x")
    assert normal("a", "a\n  new") == ("", "new")
    assert normal("b  \n", "x") == ("b", "x")
    assert normal("same", "same") == ("", "")


def test_sets_not_sequences():
    look = [(f"cat /testbed/{name}", "text") for name in ("b.py", "a.py", "b.py")]
    states, _ = of(*look)
    assert states == [NONE, f"b.py:Vf|{NONE}", f"a.py:Vf|b.py:Vf|{NONE}", f"a.py:Vf|b.py:Vf|{NONE}"]
    assert of(look[1], look[0])[0][-1] == states[-1]


def test_counts_of_thoughts_and_test_runs():
    states, actions = of(
        ([{"function": {"name": "think", "arguments": '{"thought": "x"}'}}], "Your thought has been logged."),
        ("pytest tests", "=== 1 failed in 0.1s ==="),
        ("pytest tests", PASSED),
        ("pytest tests", None),
    )
    assert actions == ["think", "test@tests:error", "test@tests:ok", "test@tests"]
    assert states[-1] == "(test_fail_count=1,test_pass_count=1,think_count=1)"
    assert states[-2] == states[-1]  # of the last run nothing is known


@pytest.mark.parametrize(
    "text", ["I wonder what to do.", "Let me open the file", "open the file and look", "find out more.", ""]
)
def test_text_without_a_command_is_a_thought(text):
    assert SweSignature().action(Step("", text)) == "think"


@pytest.mark.parametrize(
    "text",
    [
        "create a.py",
        "open a.py 10",
        "cat a.py",
        "```\ncat a.py\n```",
        "./a.py",
        "for f in x; do cat a.py; done",
        "Now:\n```bash\ncat a.py\n```",
    ],
)
def test_text_with_a_command_is_none(text):
    assert SweSignature().action(Step("", text)).endswith("@a.py")


def test_the_strongest_effect_gives_the_class_and_all_enter_the_state():
    states, actions = of(("cd /testbed && cat a.py && sed -i 's/x/y/' b.py && pytest t.py", PASSED), hash_chars=0)
    assert actions == ["modify:replace@b.py"]
    assert states[-1] == "a.py:Vf|b.py:M|(test_fail_count=0,test_pass_count=1,think_count=0)"


def test_where_the_shell_stands():
    states, _ = of(
        ("cd /testbed/src", ""),
        ("cat a.py", "x"),
        ("cd ..", ""),
        ("cat b.py", "x"),
        ("cd /nowhere", "bash: cd: /nowhere: No such file or directory"),
        ("cat c.py", "x"),
    )
    assert states[-1] == f"b.py:Vf|c.py:Vf|src/a.py:Vf|{NONE}"
    fresh = "<returncode>0</returncode>\n<output>\n{}</output>"
    states, _ = of(("cd /testbed/src && ls", fresh), ("cat a.py", fresh))
    assert states[-1].startswith("a.py:Vf|src:S|")  # each command has a shell of its own


@pytest.mark.parametrize(
    ("prompt", "path", "name"),
    [
        ("", "/testbed/src/a.py", "src/a.py"),
        ("", "/owner__repo/src/../a.py", "a.py"),
        ("", "/workspace/proj/a.py", "a.py"),
        ("", "/home/me/proj/a.py", "a.py"),
        ("", "/tmp/a.py", "/tmp/a.py"),
        ("The repository is in /opt/code/proj.", "/opt/code/proj/a.py", "a.py"),
        ("<uploaded_files>\n/data/x/y\n</uploaded_files>", "/data/x/y/a.py", "a.py"),
        ("see https://host/testbed2/a", "/testbed2/a.py", "a.py"),
        ("", "./src//a.py", "src/a.py"),
        ("", "a|b,c\n.py", "a%7Cb%2Cc%0A.py"),
    ],
)
def test_names_are_relative_to_the_root(prompt, path, name):
    assert Place(prompt).name(path) == name


def test_files_outside_the_root_keep_their_place():
    place = Place("")
    assert [place.name(p) for p in ("/testbed/a.py", "/usr/lib/b.py", "/testbed")] == ["a.py", "/usr/lib/b.py", "."]


def test_moving_deleting_and_taking_back():
    states, actions = of(
        ("echo x > a.py", ""),
        ("mv a.py pkg/b.py", ""),
        ("sed -i 's/x/y/' core.py", ""),
        ("git checkout -- core.py", ""),
        ("rm -r pkg", ""),
        hash_chars=0,
    )
    assert [key.removesuffix("|" + NONE) for key in states[1:]] == [
        "a.py:C,I",
        "a.py:D|pkg/b.py:C,I",
        "a.py:D|core.py:M|pkg/b.py:C,I",
        "a.py:D|pkg/b.py:C,I",
        "a.py:D|pkg/b.py:D",
    ]
    assert actions[1:] == ["fileop:move@a.py", "modify:replace@core.py", "fileop:revert@core.py", "fileop:delete@pkg"]


def test_git_acts_on_the_whole_repository_from_any_folder():
    states, actions = of(
        ("sed -i 's/x/y/' core.py && cd src", ""), ("git stash", "Saved"), ("git stash pop", "Dropped"), hash_chars=0
    )
    assert actions[1:] == ["fileop:revert@.", "fileop:unrevert@."]
    assert states[1:] == [f"core.py:M|{NONE}", NONE, f"core.py:M|{NONE}"]


def test_without_an_open_file_there_is_nothing_to_record():
    states, actions = of(("edit 1:2\nx\nend_of_edit", None), ("search_file x", "No file open."))
    assert actions[1] == "search@-:error"
    assert states == [NONE] * 3


def test_an_undone_edit_is_gone():
    def editor(command, **arguments):
        return call("str_replace_editor", command=command, path="/testbed/a.py", **arguments)

    states, actions = of(
        (editor("str_replace", old_str="a", new_str="b"), "The file has been edited."),
        (editor("undo_edit"), "Last edit undone."),
    )
    assert states[2] == states[0] != states[1]
    assert actions[1] == "modify:undo@a.py"


def test_classes_that_enter_the_state_are_chosen():
    steps = [("cat a.py", "x"), ("python r.py", "x"), ("pip install q", ""), ("pytest t.py", PASSED)]
    states, _ = of(*steps, state_classes=["execute", "install"])
    assert states[-1] == f"q:P|r.py:X:ok|{NONE}"
    assert of(*steps, state_classes="test")[0][-1] == NONE.replace("pass_count=0", "pass_count=1")
    assert of(*steps, state_classes=())[0] == [NONE] * 5


def test_a_search_says_what_for_on_request():
    assert of(("grep -rn foo src", "x"), search_terms=True)[1] == ["search:foo@src"]
    assert of(("grep -rn foo src", "x"))[1] == ["search@src"]


def test_a_table_takes_the_states_own_reading_of_an_action():
    steps = [("cd /testbed/src && ls", "a.py"), ("cat a.py", "x")]
    made = [Step("", "", answer=answer, tool_calls=call("bash", command=line)) for line, answer in steps]
    table = tabulate([Rollout("t", "r", made, reward=1.0)], signatures="swe:hash_chars=0")
    assert list(table.action_names) == ["search@src", "view:full@src/a.py"]


def test_the_signature_itself_gives_the_key_that_its_state_gave():
    found = rollout(FORMATS["windowed"]())
    signature = SweSignature()
    state = signature.state(found)
    before = [signature.action(step) for step in found.steps]
    alone = [SweSignature().action(step) for step in found.steps]
    assert before == alone  # nothing is known of steps to come
    keys = []
    for step in found.steps:
        keys.append(signature.action(step))
        state.update(step)
    assert keys == told(found)[1] == [signature.action(step) for step in found.steps]


def test_keys_stay_short_and_apart_in_long_rollouts():
    tree = Worktree()
    keys = set()
    for number in range(3000):
        tree.saw(f"folder/file_{number}.py", "Vf")
        keys.add(tree.key())
    assert len(keys) == 3000
    assert max(map(len, keys)) < 6200
    other = Worktree()
    for number in reversed(range(3000)):
        other.saw(f"folder/file_{number}.py", "Vf")
    assert other.key() == tree.key()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": 0}, "`bucket` must be a number of lines"),
        ({"bucket": "x"}, "`bucket`"),
        ({"hash_chars": 33}, "`hash_chars` must be 0 to 32"),
        ({"hash_chars": True}, "`hash_chars`"),
        ({"state_classes": ["views"]}, "`state_classes` has views; the classes are view, search"),
        ({"search_terms": 1}, "`search_terms`"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(SignatureError, match=message):
        SweSignature(**options)


def test_without_a_shell_parser_it_says_what_to_install(monkeypatch):
    from rtmc.signatures import shell

    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    shell._parser.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'rtmc\[report\]'"):
        SweSignature().action(Step("", "", tool_calls=call("bash", command="some command never seen")))
    monkeypatch.undo()
    shell._parser.cache_clear()


def test_the_same_keys_in_another_process():
    code = (
        "import json\nfrom tests.swe_replays import FORMATS, rollout\nfrom tests.test_signatures_swe import told\n"
        "print(json.dumps([told(rollout(form())) for form in FORMATS.values()]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == [list(map(list, told(rollout(form())))) for form in FORMATS.values()]


# No text breaks it.

SHARDS = """cat sed -i -n 1,5p 's/a/b/' <<EOF EOF > >> | && ; ( ) ' " $( ` edit 1:2 end_of_edit ``` ```bash a.py
<function=bash> <parameter=command> </parameter> </function> /testbed/b.py .. pytest rm mv git apply *** Begin Patch
<<<<<<< SEARCH ======= >>>>>>> REPLACE <command> </command> -9999999999999 [File: (9 lines total)] 1: é"""
WORDS = st.sampled_from([*SHARDS.split(), "\n", "\r\n", "\x00", "\ud800"])
TEXT = st.one_of(st.text(max_size=80), st.lists(WORDS, max_size=14).map(" ".join))
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3),
    max_leaves=5,
)
TOOLS = "bash open edit create insert str_replace_editor apply_patch set_cursors read_file think x"
KEYS = "command path old_str new_str view_range file_text patch text line_number start_line end_line edits"
NAMES = st.sampled_from(sorted(word_set(TOOLS))) | TEXT
ARGUMENTS = st.dictionaries(st.sampled_from(sorted(word_set(KEYS))), VALUE, max_size=5)
CALLS = st.one_of(
    st.builds(lambda n, a: {"function": {"name": n, "arguments": a}}, NAMES, ARGUMENTS | TEXT),
    st.builds(lambda n, a: {"name": n, "input": a}, NAMES, VALUE),
    st.dictionaries(TEXT, VALUE, max_size=2),
)
STEPS = st.builds(
    lambda a, o, c: Step("", a, answer=o, tool_calls=c), TEXT, st.none() | TEXT, st.lists(CALLS, max_size=2)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=5), TEXT)
def test_no_text_breaks_it(steps, prompt):
    steps[0].observation = prompt
    signature = SweSignature(state_classes=CLASSES)
    state = signature.state(Rollout("t", "r", steps))
    for step in steps:
        key = state.key()
        action = signature.action(step)
        assert action.partition("@")[0].partition(":")[0] in CLASSES
        assert state.key() == key
        state.update(step)
        assert "\n" not in state.key() + action
        (state.key() + action).encode()
