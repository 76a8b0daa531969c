"""Readers under broken input: valid logs of every format, mutated; a clear error or a result, never another exception.

`RTMC_FUZZ` sets how often each sample is broken, 24 times by default. The inputs are the same in every run, and their
number is told at the end: `RTMC_FUZZ=2000 python -m pytest tests/test_logs_fuzz.py -q`.
"""

import copy
import json
import math
import os
import random
from collections import Counter

import pytest
import torch

from rtmc import RolloutError, tabulate, write_rollouts
from rtmc.logs import LogReader
from rtmc.logs.domain import signatures_for
from rtmc.logs.rewards import Rewards
from rtmc.logs.validity import mark_valid
from tests.logsamples import FILES

ROUNDS = int(os.environ.get("RTMC_FUZZ", "24"))
SCALARS = [
    None,
    True,
    0,
    -1,
    1e308,
    10**400,
    math.nan,
    math.inf,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"": None},
    [1],
]
WORDS = [
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\ud800",
    b"NaN",
    b"> ",
    b"<search>",
]


def break_value(value, choose: random.Random):
    """The JSON value with one or two places replaced, removed, doubled or nested."""
    value = json.loads(json.dumps(value))
    for _ in range(choose.randint(1, 2)):
        spots = [(None, None)]
        stack = [value]
        while stack:
            node = stack.pop()
            entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            for key, entry in entries:
                spots.append((node, key))
                stack.append(entry)
        node, key = choose.choice(spots)
        new = copy.deepcopy(choose.choice(SCALARS))
        if node is None:
            value = choose.choice([value, [value], [value, new], {"task_id": "t", "messages": value}, new])
        elif choose.random() < 0.3:
            del node[key]
        elif choose.random() < 0.2:
            node[key] = [node[key], new]
        else:
            node[key] = new
    return value


def break_bytes(raw: bytes, choose: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(data) + 1)
        what = choose.randrange(4)
        if what == 0:
            data[at : at + choose.randint(0, 40)] = b""
        elif what == 1:
            data[at:at] = choose.choice(WORDS)
        elif what == 2:
            data = data[:at]
        else:
            end = min(len(data), at + choose.randint(0, 200))
            data[at:at] = data[at:end]
    return bytes(data)


def parts(text: str) -> list:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def attempt(work):
    """(what the work gives, None), or (None, the message of its RolloutError); anything else passes."""
    try:
        return work(), None
    except RolloutError as error:
        return None, str(error)


def read(path, skip_bad):
    """What a reader of the file would go through: rollouts, validity, the table, writing them again."""
    reader = LogReader([path], skip_bad=skip_bad)
    rollouts, error = attempt(lambda: list(reader))
    if error is not None:
        assert error.startswith(str(path)), error
        assert "\n" not in error
        assert len(error) < 2000
        assert not skip_bad
        return None
    for rollout in rollouts:
        mark_valid(rollout)
        assert rollout.task_id
        assert not math.isinf(rollout.reward)
        assert signatures_for(rollout)
    table = tabulate(rollouts, "text", dtype=torch.float64)
    assert len(table) == sum(len(rollout.steps) for rollout in rollouts)
    assert len(tabulate(rollouts, signatures_for, dtype=torch.float64)) == len(table)
    return rollouts, reader.skipped


@pytest.fixture(scope="module")
def tried(request):
    """Counts the inputs; tells their number when all were tried."""
    counts = Counter()
    yield counts
    told = " and ".join(f"{count:,} broken {what}" for what, count in counts.items())
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\ntried: {told or 'nothing'}")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_broken_log_gives_an_error_or_a_result(tmp_path_factory, tried, name):
    folder = tmp_path_factory.mktemp("fuzz")
    for number in range(ROUNDS):
        one_log(folder, name, random.Random(f"{name} {number}"), number % 2 == 0)
        tried["logs"] += 1


def one_log(folder, name, choose, structured):
    text = FILES[name]
    if structured and not name.endswith(".txt"):
        values = [break_value(value, choose) for value in parts(text)]
        raw = "\n".join(json.dumps(value, ensure_ascii=choose.random() < 0.9) for value in values)
        raw = raw.encode("utf-8", "surrogatepass")
    else:
        raw = break_bytes(text.encode(), choose)
    path = folder / name
    path.write_bytes(raw)
    strict = read(path, skip_bad=False)
    lenient = read(path, skip_bad=True)
    assert lenient is not None
    if strict is None:
        assert lenient[1] > 0
    else:
        assert lenient[1] == 0
        # What was read can be written in our own format and read again.
        rollouts = strict[0]
        _, error = attempt(lambda: write_rollouts(folder / "again.jsonl", rollouts))
        if error is not None:
            assert "cannot be written as JSON" in error
            return
        again = list(LogReader([folder / "again.jsonl"]))
        assert [len(r.steps) for r in again] == [len(r.steps) for r in rollouts]
        assert [s.action for r in again for s in r.steps] == [s.action for r in rollouts for s in r.steps]


SIDECARS = [
    {"t": {"a": 1.0, "b": 0}},
    [{"task_id": "t", "rollout_id": "a", "reward": 1}],
    {"resolved_ids": ["t"], "unresolved_ids": ["u"], "error_ids": []},
    {"t": {"resolved": True, "patch_exists": True, "tests_status": {}}},
]


@pytest.mark.parametrize("place", range(5))
def test_broken_rewards_give_an_error_or_numbers(tmp_path_factory, tried, place):
    folder = tmp_path_factory.mktemp("rewards")
    for number in range(ROUNDS):
        one_sidecar(folder, place, random.Random(f"{place} {number}"))
        tried["files of rewards"] += 1


def one_sidecar(folder, place, choose):
    if place < 4:
        raw = json.dumps(break_value(SIDECARS[place], choose)).encode()
        raw = break_bytes(raw, choose) if choose.random() < 0.3 else raw
    else:
        raw = break_bytes(b"task_id,rollout_id,reward\nt,a,1\nt,b,\n", choose)
    path = folder / "r.json"
    path.write_bytes(raw)
    rewards, error = attempt(lambda: Rewards.read([path]))
    if error is not None:
        assert error.startswith(str(path))
        assert "\n" not in error
    else:
        assert all(not math.isinf(value) for file in rewards._files for value, _ in file.entries.values())


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("name", ["chat.jsonl", "owner__repo-6.traj", "anthropic.jsonl"])
def test_deep_nesting(tmp_path, name, depth):
    value = json.loads(FILES[name])
    deep = "[" * depth + "]" * depth
    text = json.dumps({**value, "extra": "HERE"}).replace('"HERE"', deep)
    call = json.dumps({**value, "messages": "HERE"}) if "messages" in value else text
    calls = [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "HERE"}}]}]
    call = call.replace('"HERE"', json.dumps(calls)).replace('"HERE"', deep)
    for number, line in enumerate((text, call)):
        path = tmp_path / f"{number}-{name}"
        path.write_text(line)
        read(path, skip_bad=False)
        assert read(path, skip_bad=True) is not None
