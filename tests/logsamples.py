"""Small logs of every format, written by hand after the tools' own texts; the tests and the fuzzing of the readers
start from them."""

import json

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "Danube"}'}}
CHAT = {
    "task_id": "t1",
    "rollout_id": "a",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Which river?"}]},
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "The Danube flows."},
        {"role": "assistant", "content": "The Danube."},
    ],
    "reward": 1.0,
}

SWE_AGENT = {
    "environment": "main",
    "trajectory": [
        {
            "action": "open src/a.py 3\n",
            "observation": "[File: /owner__repo/src/a.py (9 lines total)]\n",
            "response": "Look.\n```\nopen src/a.py 3\n```",
            "thought": "Look.\n",
            "state": '{"open_file": "n/a", "working_dir": "/owner__repo"}\n',
        },
        {
            "action": "edit 3:3\n return\nend_of_edit\n",
            "observation": "Your proposed edit has introduced new syntax error(s). Please understand the fixes",
            "response": "Mend.",
            "thought": "Mend.",
            "state": '{"open_file": "/owner__repo/src/a.py", "working_dir": "/owner__repo"}\n',
        },
        {"action": "submit\n", "observation": "diff --git a/src/a.py", "response": "Done.", "thought": "Done."},
    ],
    "history": [
        {"role": "system", "content": "You are a programmer."},
        {"role": "user", "content": "A demonstration.", "is_demo": True},
        {"role": "assistant", "content": "As one would do it.", "is_demo": True},
        {"role": "user", "content": "ISSUE: it breaks."},
        {"role": "assistant", "content": "Look.", "action": "open src/a.py 3\n"},
    ],
    "info": {"exit_status": "submitted", "submission": "diff --git a/src/a.py"},
}

MINI = {
    "trajectory_format": "mini-swe-agent-1",
    "info": {"exit_status": "Submitted", "submission": "diff"},
    "instance_id": "owner__repo-7",
    "messages": [
        {"role": "system", "content": "You can use a computer."},
        {"role": "user", "content": "Please solve this issue: it breaks."},
        {"role": "assistant", "content": "THOUGHT: look\n\n```bash\nls -la\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>\na.py\n</output>"},
        {"role": "assistant", "content": "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"},
        {"role": "exit", "content": "diff"},
    ],
}

R2E = {
    "trajectory_steps": [
        {
            "thought": "Look around.",
            "action": "<function=execute_bash>\n<parameter=cmd>ls</parameter>\n</function>",
            "observation": "Exit code: 0\nExecution output of [execute_bash]:\na.py",
        },
        {
            "thought": "",
            "action": "<function=finish>\n<parameter=command>submit</parameter>\n</function>",
            "observation": "<<< Finished >>>",
        },
    ],
    "problem_statement": "It breaks.",
    "ds": {"instance_id": "owner__repo-8"},
    "exit_reason": "agent",
    "reward": 0.0,
}
R2E_TEXT = (
    "Fix the bug in a.py.\n\nLook around.\n"
    "<function=execute_bash>\n<parameter=cmd>ls</parameter>\n</function>\n"
    "Exit code: 0\nExecution output of [execute_bash]:\na.py\n"
    "<function=finish>\n<parameter=command>submit</parameter>\n</function>\n<<< Finished >>>\n"
)

SEARCH_R1_TEXT = (
    "<think>I must look.</think>\n<search> capital of Austria </search>\n\n"
    '<information>Doc 1(Title: "Vienna") Vienna is the capital.\n</information>\n\n'
    "<search>Vienna\n\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
    "</search>. Let me try again.\n<think>Now I know.</think><answer> Vienna </answer>"
)
SEARCH_R1 = {"input": "Question: capital of Austria?\n", "output": SEARCH_R1_TEXT, "score": 1.0, "step": 3}

ALFWORLD_GAME = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, and a shelf 1.\n"
    "Your task is to: put some mug on shelf.\n"
    "> think: First I need to find a mug.\nOK.\n"
    "> go to cabinet 1\nThe cabinet 1 is closed.\n"
    "> dance\nNothing happens.\n"
    "> look\nYou are in the middle of a room. Looking quickly around you, you see nothing.\n"
)
ALFWORLD_LOG = (
    "\n#####\n\nEnvironment #0:\nInteract with a household to solve a task. Here are two examples.\n"
    + ALFWORLD_GAME.replace("mug", "pan")
    + "\nHere is the task:\n"
    + ALFWORLD_GAME
    + "\n\nSTATUS: OK\n\n#####\n"
    + "\n#####\n\nEnvironment #1:\nInteract with a household to solve a task. Here are two examples.\n"
    + ALFWORLD_GAME.replace("mug", "pan")
    + "\nHere is the task:\n"
    + ALFWORLD_GAME.replace("mug", "cup")
    + "\n\nSTATUS: FAIL\n\n#####\n\n-----\nSUCCESS: 1\n-----\n"
)

REACT_TEXT = (
    "Question: Which film festival?\n"
    "Thought 1: I need to search Wolf and Sheep.\nAction 1: Search[Wolf and Sheep]\n"
    "Observation 1: Could not find [Wolf and Sheep]. Similar: ['Sheep']\n"
    "Thought 2: Then the film.\nAction 2: Finish[Cannes]\nObservation 2: Answer is INCORRECT\n"
)

SHAREGPT = {
    "id": "x7",
    "conversations": [
        {"from": "system", "value": "S"},
        {"from": "human", "value": "Which river?"},
        {"from": "gpt", "value": "Action: go"},
        {"from": "human", "value": "Observation: gone"},
        {"from": "gpt", "value": "Done"},
    ],
}
ANTHROPIC = {
    "instance_id": "owner__repo-9",
    "resolved": True,
    "messages": [
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "u1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "u1", "content": [{"type": "text", "text": "a.py"}]}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
    ],
}


def _call(identifier, name, arguments):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


EDIT = {"command": "str_replace", "path": "/workspace/repo/a.py", "old_str": "x", "new_str": "y"}
# As OpenHands' evaluation writes it: one model reply of two calls, an editor's refusal, the end.
OPENHANDS = {
    "instance_id": "owner__repo-10",
    "test_result": {"git_patch": "diff"},
    "metadata": {"agent_class": "CodeActAgent"},
    "history": [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are an agent."}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": "Fix it in /workspace/repo."}},
        {"id": 2, "source": "environment", "action": "recall", "args": {"query": "Fix it"}},
        {"id": 3, "source": "environment", "observation": "recall", "content": "", "cause": 2, "extras": {}},
        *(
            {
                "id": 4 + n,
                "source": "agent",
                "action": "run",
                "args": {"command": command, "thought": "I look." if n == 0 else "", "blocking": False},
                "tool_call_metadata": {
                    "function_name": "execute_bash",
                    "tool_call_id": f"c{n}",
                    "total_calls_in_response": 2,
                    "model_response": {
                        "id": "reply-1",
                        "choices": [
                            {
                                "message": {
                                    "tool_calls": [
                                        _call("c0", "execute_bash", {"command": "ls"}),
                                        _call("c1", "execute_bash", {"command": "cat a.py"}),
                                    ]
                                }
                            }
                        ],
                    },
                },
            }
            for n, command in enumerate(("ls", "cat a.py"))
        ),
        {
            "id": 6,
            "source": "agent",
            "observation": "run",
            "content": "x = 1",
            "cause": 5,
            "extras": {"metadata": {"exit_code": 0, "working_dir": "/workspace/repo", "prefix": "", "suffix": ""}},
        },
        {
            "id": 7,
            "source": "agent",
            "observation": "run",
            "content": "a.py",
            "cause": 4,
            "extras": {"metadata": {"exit_code": 0, "working_dir": "/workspace/repo", "prefix": "", "suffix": ""}},
        },
        {
            "id": 8,
            "source": "agent",
            "action": "edit",
            "args": {**EDIT, "thought": "I change it.", "impl_source": "oh_aci", "start": 1, "end": -1},
            "tool_call_metadata": {"function_name": "str_replace_editor", "tool_call_id": "c2", "model_response": {}},
        },
        {"id": 9, "source": "agent", "observation": "error", "content": "ERROR: no match", "cause": 8, "extras": {}},
        {"id": 10, "source": "agent", "action": "finish", "args": {"final_thought": "Done.", "outputs": {}}},
    ],
    "error": None,
}
# As older versions write it: pairs, and calls without metadata.
OPENHANDS_PAIRS = {
    "instance_id": "owner__repo-10",
    "history": [
        [
            {"id": 1, "source": "user", "action": "message", "args": {"content": "Fix it."}},
            {"id": -1, "observation": "null", "content": "", "extras": {}},
        ],
        [
            {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "I look."}},
            {"id": 3, "observation": "run", "content": "a.py", "cause": 2, "extras": {"exit_code": 1}},
        ],
        [
            {"id": 4, "source": "agent", "action": "read", "args": {"path": "/r/a.py", "start": 0, "end": -1}},
            {"id": 5, "observation": "read", "content": "x", "cause": 4, "extras": {"path": "/r/a.py"}},
        ],
        [
            {"id": 6, "source": "agent", "action": "message", "args": {"content": "Is that all?"}},
            {"id": 7, "source": "user", "action": "message", "args": {"content": "Go on."}},
        ],
    ],
    "error": "RuntimeError: Agent reached maximum iteration",
    "report": {"resolved": False},
}
# A data set of the same as chats.
TRAJECTORY_CHAT = {
    "instance_id": "owner__repo-11",
    "trajectory_id": "run-3",
    "exit_status": "submit",
    "resolved": 1,
    "trajectory": [
        {"role": "system", "content": "You are an agent.", "tool_calls": None},
        {"role": "user", "content": "Fix it.", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [_call("c1", "execute_bash", {"command": "ls"})]},
        {"role": "tool", "content": "a.py", "tool_call_id": "c1", "name": "execute_bash"},
        {"role": "assistant", "content": "Done."},
    ],
}

# File name -> content; each file holds logs of one format.
FILES: dict[str, str] = {
    "chat.jsonl": json.dumps(CHAT) + "\n",
    "owner__repo-6.traj": json.dumps(SWE_AGENT, indent=2),
    "mini.traj.json": json.dumps(MINI, indent=2),
    "r2e.jsonl": json.dumps(R2E) + "\n",
    "r2e.txt": R2E_TEXT,
    "search.jsonl": json.dumps(SEARCH_R1) + "\n",
    "search.txt": SEARCH_R1_TEXT,
    "alfworld.txt": ALFWORLD_LOG,
    "alfworld.jsonl": json.dumps({"task_id": "g", "text": ALFWORLD_GAME, "success": False}) + "\n",
    "react.txt": REACT_TEXT,
    "sharegpt.json": json.dumps([SHAREGPT], indent=1),
    "anthropic.jsonl": json.dumps(ANTHROPIC) + "\n",
    "output.jsonl": json.dumps(OPENHANDS) + "\n" + json.dumps(OPENHANDS_PAIRS) + "\n",
    "events.json": json.dumps(OPENHANDS["history"], indent=1),
    "trajectory.jsonl": json.dumps(TRAJECTORY_CHAT) + "\n",
}
