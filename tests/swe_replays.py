"""One fix of one issue, as agents of different tool formats would write it down; the texts are made up for the tests.

The steps: the repository is listed, a script that shows the fault is written and run, the source is viewed, an edit is
refused, an edit is made, the script runs again, tests run, the script is removed, the work is handed in. Each format
is told as (action text, tool calls, answer).
"""

import json

from rtmc import Rollout, Step

SCRIPT = 'from clock import span\n\nprint(span("1.9s"))'
OLD = "        return int(total / unit)"
NEW = "        return int(round(total / unit))"
SOURCE = {131 + n: line for n, line in enumerate(("    def whole(self):", "        total = self.total()", OLD, ""))}
AROUND = "(130 more lines above)\n{}\n(266 more lines below)"
TAB, COLON = "{:6d}\t{}", "{}:{}"  # how `cat -n` and the windowed viewer number lines
PASSED = "tests/test_clock.py .....\n=== 5 passed in 0.10s ==="


def call(name, **arguments):
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]


def numbered(form, lines=SOURCE):
    return "\n".join(form.format(n, text) for n, text in lines.items())


def windowed():
    """SWE-agent's first editor: a file is opened, lines are replaced, a fault in the syntax is refused."""
    root = "/owner__clock"
    window = f"[File: {root}/src/clock.py (400 lines total)]\n{AROUND.format(numbered(COLON))}"

    def say(command):
        return f"I go on.\n```\n{command}\n```\n"

    return [
        (say("ls -F"), [], "src/  tests/"),
        (say("create repro.py"), [], f"[File: {root}/repro.py (1 lines total)]\n1:\n"),
        (
            say(f"edit 1:1\n{SCRIPT}\nend_of_edit"),
            [],
            f"[File: {root}/repro.py (3 lines total)]\n1:from clock import span\n2:\n3:print\nFile updated.",
        ),
        (say("python repro.py"), [], "1"),
        (say("open src/clock.py 132"), [], window),
        (
            say(f"edit 133:133\n{NEW.strip()}\nend_of_edit"),
            [],
            f"Your proposed edit has introduced new syntax error(s).\n- E999 IndentationError\n{window}",
        ),
        (say(f"edit 133:133\n{NEW}\nend_of_edit"), [], window + "\nFile updated. Please review the changes"),
        (say("python repro.py"), [], "2"),
        (say("python -m pytest tests/test_clock.py"), [], PASSED),
        (say("rm repro.py"), [], ""),
        (say("submit"), [], "diff --git a/src/clock.py b/src/clock.py"),
    ]


def cursors():
    """SWE-agent's editor with cursors, in `<command>` tags."""
    steps = windowed()
    window = steps[4][2]

    def say(command):
        return f"<discussion>\nNow this.\n</discussion>\n<command>\n{command}\n</command>"

    texts = [action.split("```\n")[1] for action, _, _ in steps]
    told = [(say(text.rstrip()), [], answer) for text, (_, _, answer) in zip(texts, steps, strict=True)]
    told[5] = (say(f"edit\n{NEW.strip()}\nend_of_edit"), [], steps[5][2])
    told[6] = (say(f"edit\n{NEW}\nend_of_edit"), [], steps[6][2])
    told[2] = (say(f"edit\n{SCRIPT}\nend_of_edit"), [], steps[2][2])
    told.insert(2, (say("set_cursors 1 1"), [], steps[1][2]))
    told.insert(6, (say("set_cursors 133 133"), [], window))
    return told


def replace_tools():
    """SWE-agent 1.x: structured calls; the editor takes old and new text of the file that is open."""
    root = "/testbed"
    window = (
        f"[File: src/clock.py (400 lines total)]\n(130 more lines above)\n{numbered(COLON)}\n(266 more lines below)"
    )
    return [
        ("Look around.", call("bash", command="ls -F"), "src/  tests/"),
        ("", call("create", filename="repro.py"), "[File: repro.py (1 lines total)]\n1:"),
        ("", call("insert", text=SCRIPT), f"[File: {root}/repro.py (4 lines total)]\n1:\n2:from clock import span"),
        ("", call("bash", command="python repro.py"), "1"),
        ("", call("open", path="src/clock.py", line_number=132), window),
        (
            "",
            call("edit", search=OLD.strip(), replace="# rounded\n" + NEW.strip()),
            "Your proposed edit has introduced new syntax error(s). Please read this error message carefully",
        ),
        ("", call("edit", search=OLD.strip(), replace=NEW.strip()), f"Text replaced. Please review\n{window}"),
        ("", call("bash", command="python repro.py"), "2"),
        ("", call("bash", command="pytest tests/test_clock.py -q"), PASSED),
        ("", call("bash", command="rm repro.py"), ""),
        ("", call("submit"), "diff --git a/src/clock.py b/src/clock.py"),
    ]


def named_editor(name="str_replace_editor", shell="bash", root="/testbed", status="", key="command"):
    """Anthropic's editor, as SWE-agent, OpenHands and others offer it: every call names the file."""
    path = f"{root}/src/clock.py"
    shown = f"Here's the result of running `cat -n` on {path}:\n{numbered(TAB)}\n"
    edited = f"The file {path} has been edited. Here's the result of running `cat -n` on a snippet of {path}:\n"
    end = f"\n[The command completed with exit code {{}}.]\n[Current working directory: {root}]" if status else ""
    return [
        ("Look.", call(shell, **{key: f"cd {root} && ls -F"}), "src/  tests/" + end.format(0)),
        (
            "",
            call(name, command="create", path=f"{root}/repro.py", file_text=SCRIPT + "\n"),
            "File created successfully",
        ),
        ("", call(shell, **{key: f"cd {root} && python repro.py"}), "1" + end.format(0)),
        ("", call(name, command="view", path=path, view_range=[131, 134]), shown),
        (
            "",
            call(
                name, command="str_replace", path=path, old_str="int(totl / unit)", new_str="int(round(total / unit))"
            ),
            f"No replacement was performed, old_str `int(totl / unit)` did not appear verbatim in {path}.",
        ),
        (
            "",
            call(
                name, command="str_replace", path=path, old_str="int(total / unit)", new_str="int(round(total / unit))"
            ),
            edited,
        ),
        ("", call(shell, **{key: f"cd {root} && python repro.py"}), "2" + end.format(0)),
        (
            "",
            call(shell, **{key: f"cd {root}; python -m pytest tests/test_clock.py 2>&1 | tail -5"}),
            PASSED + end.format(0),
        ),
        ("", call(shell, **{key: f"rm {root}/repro.py"}), end.format(0)),
        ("", call("finish", message="done"), None),
    ]


def command_line_editor():
    """The same calls as SWE-agent 1.x writes them into its logs: a command line with options."""
    told = []
    for text, calls, answer in named_editor():
        function = calls[0]["function"]
        given = json.loads(function["arguments"])
        if function["name"] == "str_replace_editor":

            def quoted(value):
                return "'" + str(value).replace("'", "'\"'\"'") + "'"

            options = [f"--{k} {quoted(v)}" for k, v in given.items() if k in ("file_text", "old_str", "new_str")]
            if "view_range" in given:
                options.append("--view_range {} {}".format(*given["view_range"]))
            line = " ".join(["str_replace_editor", given["command"], given["path"], *options])
        else:
            line = given.get("command", "submit")
        told.append((f"{text}\n```\n{line}\n```", [], answer))
    return told


def r2e_gym():
    """R2E-Gym: function text, a new shell for every command, its own editor's words."""
    told = []
    for text, calls, answer in named_editor("file_editor", "execute_bash", key="cmd"):
        function = calls[0]["function"]
        given = json.loads(function["arguments"])
        parameters = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in given.items())
        label = f"Execution output of [{function['name']}]:\n"
        if function["name"] == "execute_bash":
            answer = f"Exit code: 0\n{label}{answer}"
        elif answer and answer.startswith("No replacement"):
            answer = (
                f"{label}ERROR: No occurrences of 'int(totl / unit)' found in /testbed/src/clock.py for replacement."
            )
        elif answer is not None:
            answer = label + answer
        told.append((f"{text}\n<function={function['name']}>\n{parameters}</function>", [], answer))
    return told


def mini():
    """mini-swe-agent: one block of bash a step, each in a new shell; files are changed by sed and heredocs."""

    def say(command):
        return f"THOUGHT: next.\n\n```bash\n{command}\n```"

    def told(output, status=0):
        return f"<returncode>{status}</returncode>\n<output>\n{output}\n</output>"

    return [
        (say("cd /testbed && ls -F"), [], told("src/  tests/")),
        (say(f"cd /testbed && cat > repro.py << 'EOF'\n{SCRIPT}\nEOF"), [], told("")),
        (say("cd /testbed && python repro.py"), [], told("1")),
        (say("cd /testbed && nl -ba src/clock.py | sed -n '131,134p'"), [], told(numbered(TAB))),
        (
            say("cd /testbed && sed -i 's/x/y' src/clock.py"),
            [],
            told("sed: -e expression #1, char 5: unterminated `s'", 1),
        ),
        (
            say("cd /testbed && sed -i '133s/int(total \\/ unit)/int(round(total \\/ unit))/' src/clock.py"),
            [],
            told(""),
        ),
        (say("cd /testbed && python repro.py"), [], told("2")),
        (say("cd /testbed && python -m pytest tests/test_clock.py"), [], told(PASSED)),
        (say("cd /testbed && rm repro.py"), [], told("")),
        (say("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"), [], None),
    ]


def blocks():
    """Search/replace blocks as aider writes them, beside shell blocks."""

    def say(command):
        return f"Next.\n\n```bash\n{command}\n```\n"

    def block(path, old, new):
        return f"I change it.\n\n{path}\n```python\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n"

    shown = numbered(TAB)
    return [
        (say("ls -F"), [], "src/  tests/"),
        (block("repro.py", "", SCRIPT + "\n"), [], "Applied edit to repro.py"),
        (say("python repro.py"), [], "1"),
        (say("cat -n src/clock.py | sed -n 131,134p"), [], shown),
        (block("src/clock.py", "        return totl\n", NEW + "\n"), [], "1 SEARCH/REPLACE block failed to match!"),
        (block("src/clock.py", OLD + "\n", NEW + "\n"), [], "Applied edit to src/clock.py"),
        (say("python repro.py"), [], "2"),
        (say("pytest tests/test_clock.py"), [], PASSED),
        (say("rm repro.py"), [], ""),
        (say("submit"), [], None),
    ]


def anthropic():
    """Blocks of type `tool_use`, as the messages API has them."""
    told = []
    for text, calls, answer in named_editor("str_replace_based_edit_tool", root="/repo"):
        function = calls[0]["function"]
        use = {"type": "tool_use", "id": "t", "name": function["name"], "input": json.loads(function["arguments"])}
        told.append((text, [use], answer))
    return told


def openhands():
    """OpenHands: JSON calls, a checkout below /workspace, the exit code behind the output."""
    return named_editor(shell="execute_bash", root="/workspace/clock", status="told")


FORMATS = {
    f.__name__: f
    for f in (
        windowed,
        cursors,
        replace_tools,
        named_editor,
        command_line_editor,
        r2e_gym,
        mini,
        blocks,
        anthropic,
        openhands,
    )
}


def rollout(steps, name="r", task="t", prompt="Please solve the issue."):
    made = [Step("", text, answer=answer, tool_calls=calls) for text, calls, answer in steps]
    for place, step in enumerate(made):
        step.observation = made[place - 1].answer or "" if place else prompt
    return Rollout(task, name, made)
