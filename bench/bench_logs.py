"""Logs to credit: reading, SWE signatures and the step table of 3,200 steps, and what reading alone holds in memory.

64 rollouts of 8 tasks, 50 steps each, in the chat form with tool calls: shell commands and an editor's, with
observations of 4 kB. Candidates of the first case, on one thread, beginning at the file:

* ours: ``LogReader``, ``tabulate`` with the signatures "swe" (a new one each time, so that no parse is kept);
* the peer: ``json.loads`` of every line and nothing else, which every reader of such a file pays;
* the advantages alone, on the finished table, which are to be below 1 % of ours.

The other cases read larger and larger files, rollout by rollout, and say the most memory that this adds.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from measure import Case

import rtmc
from rtmc.logs import LogReader

TESTS = ["tests/test_logs_reader.py", "tests/test_logs_formats.py"]
_WORDS = ["value", "field", "self", "return", "import", "none", "test", "error", "line", "module", "raise", "class"]


def make_rollout(rng: random.Random, task: int, number: int, steps: int) -> dict:
    """One rollout in our own format: views, searches, edits and tests on twenty files."""
    messages = [{"role": "user", "content": f"Fix issue {task}."}]
    for step in range(steps):
        file = f"/testbed/src/module_{min(int(rng.expovariate(0.4)), 19)}.py"
        first = rng.randrange(1, 900)
        name, arguments = rng.choice(
            [
                ("bash", {"command": f"cd /testbed && sed -n {first},{first + 40}p {file}"}),
                ("bash", {"command": f"grep -rn 'name_{rng.randrange(30)}' /testbed/src | head -20"}),
                ("bash", {"command": f"cd /testbed && pytest tests/test_{rng.randrange(9)}.py -q 2>&1 | tail"}),
                ("str_replace_editor", {"command": "view", "path": file, "view_range": [first, first + 60]}),
                ("str_replace_editor", {"command": "str_replace", "path": file, "old_str": "a", "new_str": f"b{step}"}),
            ]
        )  # fmt: skip
        call = {"id": f"c{step}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        text = " ".join(rng.choices(_WORDS, k=680))[:4000]
        messages.append({"role": "assistant", "content": f"Step {step}: I look.", "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": f"c{step}", "content": f"{text}\n[exit code {rng.randrange(2)}]"}
        )
    return {
        "task_id": f"task-{task}",
        "rollout_id": str(number),
        "messages": messages,
        "reward": float(rng.random() < 0.4),
    }


def make_file(folder: Path, rollouts: int, steps: int) -> Path:
    """A file of `rollouts` lines; every eighth is of the same task."""
    rng = random.Random(rollouts)
    path = folder / f"{rollouts}x{steps}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rollouts):
            file.write(json.dumps(make_rollout(rng, number % 8, number, steps)) + "\n")
    return path


def tabulated(path: Path) -> rtmc.StepTable:
    return rtmc.tabulate(LogReader([path]), "swe")


def parsed(path: Path) -> int:
    with path.open("rb") as file:
        return sum(len(json.loads(line)["messages"]) for line in file)


def cases(quick: bool) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as name:
        torch.set_num_threads(1)
        rollouts, steps = (16, 50) if quick else (64, 50)
        path = make_file(Path(name), rollouts, steps)
        table = tabulated(path)
        yield Case(
            f"logs to table, {rollouts * steps:,} steps",
            {
                "read, sign, tabulate": lambda: tabulated(path),
                "json.loads": lambda: parsed(path),
                "the advantages alone": lambda: rtmc.advantages(table, "rtmc"),
            },
            bytes_moved=path.stat().st_size,
            rows=rollouts * steps,
        )
        for count in (64, 256) if quick else (64, 256, 512):
            large = make_file(Path(name), count, 50)
            yield Case(
                f"reading {large.stat().st_size / 1e6:.0f} MB",
                {
                    "LogReader": lambda large=large: sum(len(r.steps) for r in LogReader([large])),
                    "read whole, then parse": lambda large=large: len(
                        [json.loads(line) for line in large.read_bytes().splitlines()]
                    ),
                },
                bytes_moved=large.stat().st_size,
                memory=True,
            )
            large.unlink()
