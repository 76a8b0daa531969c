"""Reading files of logs: what is malformed and what is not, gzip, folders, ids, memory."""

import gzip
import json
import math
import time
import tracemalloc

import pytest

from rtmc import RolloutError, read_rollouts, tabulate
from rtmc.logs import LogReader
from tests.logsamples import ALFWORLD_GAME, CHAT, FILES


def line(rollout_id="a", **more):
    return json.dumps({**CHAT, "rollout_id": rollout_id, **more})


def write(tmp_path, content, name="log.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ids(path, **options):
    return [rollout.rollout_id for rollout in LogReader([path], **options)]


# --- what is no fault --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        line("a") + "\n" + line("b") + "\n",
        line("a") + "\n" + line("b"),
        "\ufeff" + line("a") + "\r\n\r\n" + line("b") + "\r\n",
        "\n \n" + line("a") + "\n\n\n" + line("b") + "\n\n",
        json.dumps([json.loads(line("a")), json.loads(line("b"))]),
        json.dumps([json.loads(line("a")), json.loads(line("b"))], indent=2),
        json.dumps(json.loads(line("a")), indent=2) + "\n" + json.dumps(json.loads(line("b")), indent=2),
        "{\n" + line("a")[1:] + "\n" + line("b"),
    ],
    ids=["plain", "no last line feed", "BOM, CRLF, blank", "blank lines", "a list", "an indented list",
         "indented one after the other", "one over two lines"],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_ways_of_writing_the_same(tmp_path, content, packed):
    raw = content.encode()
    path = write(tmp_path, gzip.compress(raw) if packed else raw, "log.jsonl.gz" if packed else "log.jsonl")
    assert ids(path) == ["a", "b"]


def test_line_feeds_of_other_kinds_end_no_line(tmp_path):
    content = line(messages=[{"role": "assistant", "content": "a\u2028b\x0cc\u0085"}])
    path = write(tmp_path, content.replace("\\u2028", "\u2028").replace("\\f", "\\f"))
    assert read_rollouts(path)[0].steps[0].action == "a\u2028b\x0cc\u0085"


def test_several_formats_in_one_file(tmp_path):
    lines = [json.dumps(json.loads(FILES[name])) for name in ("chat.jsonl", "owner__repo-6.traj", "search.jsonl")]
    path = write(tmp_path, "\n".join(lines))
    reader = LogReader([path])
    assert [rollout.rollout_id for rollout in reader] == ["a", "log:2", "log:3"]
    assert reader.formats == {"rtmc": 1, "sweagent": 1, "search-r1": 1}
    # Read as one format, the others are malformed, and the message says in which format they were wanted.
    with pytest.raises(RolloutError, match=r"log\.jsonl:1: not a record of the format 'sweagent'"):
        list(LogReader([path], "sweagent"))


@pytest.mark.parametrize("reward", ["NaN", "null", None])
def test_an_unknown_reward(tmp_path, reward):
    text = (
        line(reward="HERE").replace('"HERE"', reward)
        if reward
        else json.dumps({k: CHAT[k] for k in CHAT if k != "reward"})
    )
    (rollout,) = read_rollouts(write(tmp_path, text))
    assert math.isnan(rollout.reward)


def test_a_step_without_an_answer_and_an_empty_rollout(tmp_path):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    path = write(
        tmp_path, line("a", messages=messages) + "\n" + line("b", messages=[]) + "\n" + line("c", messages=messages[:1])
    )
    rollouts = read_rollouts(path)
    assert [[s.answer for s in r.steps] for r in rollouts] == [[None], [], []]
    assert tabulate(rollouts, "text").n_rollouts == 3


def test_ten_thousand_steps(tmp_path):
    messages = []
    for step in range(10_000):
        messages += [{"role": "user", "content": f"see {step}"}, {"role": "assistant", "content": f"do {step % 7}"}]
    (rollout,) = read_rollouts(write(tmp_path, line(messages=messages)))
    assert len(rollout.steps) == 10_000
    assert rollout.steps[9_999].observation == "see 9999"
    assert len(tabulate([rollout], "text")) == 10_000


def test_a_line_of_fifty_megabytes(tmp_path):
    path = write(tmp_path, line("a", messages=[{"role": "assistant", "content": "x" * 50_000_000}]) + "\n" + line("b"))
    began = time.perf_counter()
    first, second = read_rollouts(path)
    assert len(first.steps[0].action) == 50_000_000
    assert second.rollout_id == "b"
    assert time.perf_counter() - began < 20
    # Cut off, it is told in one short line.
    path.write_bytes(path.read_bytes()[:40_000_000])
    with pytest.raises(RolloutError, match="not JSON") as caught:
        read_rollouts(path)
    assert len(str(caught.value)) < 400


def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    body = "y" * 20_000

    def peak(rollouts):
        path = tmp_path / "big.jsonl"
        with path.open("w") as file:
            for number in range(rollouts):
                file.write(line(str(number), messages=[{"role": "assistant", "content": body}]) + "\n")
        tracemalloc.start()
        count = sum(1 for _ in LogReader([path]))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == rollouts
        return used

    small, large = peak(40), peak(800)  # 0.8 and 16 MB
    assert large < small + 1_000_000


# --- what is malformed -------------------------------------------------------------------------------------

CUT = line("b")[:80]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (CUT, r"not JSON \(.*column \d+\); it ends too early: was it cut off\?"),
        ('{"task_id" "t"}', r"not JSON \(Expecting ':' delimiter, column 12\)"),
        ("plain words", r"not JSON \(Expecting value, column 1\)"),
        ('{"a": 1, "a": 2}', "the key `a` comes twice in one object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"reward": ' + "1" * 5000 + "}", "not valid JSON: .*digits"),
        ("5", "a rollout is a JSON object.*got a number"),
        ("[]", "a rollout is a JSON object.*got a list"),
        ('{"steps": 1, "x": 2}', "not a log in a known format.*its keys: `steps`, `x`"),
        ('{"text": "just prose"}', "a record with a text in no known form"),
        (line("a"), "rollout 'a' of task 't1' is on line 1 already"),
        (line("b", reward="1"), "`reward` must be a number, got a string"),
        (line("b", reward=10**400), "`reward` holds a number too large"),
        (line("b", reward=math.inf), "`reward` is inf"),
        (line("b", messages={"role": "user"}), "`messages` must be a list of chat messages, got an object"),
        (line("b", messages=[{"role": "user", "content": 5}]), r"`messages\[0\]`: `content` must be a string"),
        (line("b", task_id=["x"] * 10_000), "`task_id` must be a string.*got a list of 10000 entries"),
        (line("b", meta={"rtmc": {"tokens": [2**70, 1]}}), "`meta.rtmc.tokens` must hold counts"),
        ('{"trajectory": [5], "info": {}}', r"`trajectory\[0\]` must be an object, got a number"),
        ('{"trajectory": [{"action": 5}], "info": {}}', r"`trajectory\[0\]`: `action` must be a string"),
        ('{"trajectory_steps": ["x"]}', r"`trajectory_steps\[0\]` must be an object, got a string"),
        ('{"conversations": [{"from": 1}]}', r"`conversations\[0\]`: `from` must be a string, got a number"),
        ('{"output": "<search>x</search><information>", "score": "1"}', "`score` must be a number.*got a string"),
        (line("b").encode()[:-9] + b'\xff"}', r"not UTF-8 text \(byte \d+: 0xff\)"),
    ],
)
def test_a_malformed_record_is_named_and_can_be_skipped(tmp_path, bad, message):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = write(tmp_path, line("a").encode() + b"\n\n" + bad + b"\n" + line("z").encode() + b"\n")
    with pytest.raises(RolloutError, match=message) as caught:
        list(LogReader([path]))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    reader = LogReader([path], skip_bad=True)
    assert [rollout.rollout_id for rollout in reader] == ["a", "z"]
    assert reader.skipped == 1
    assert reader.skipped_examples == [str(caught.value)]


@pytest.mark.parametrize("bad", [CUT.encode(), b"plain words", b"[1,", b'{"a": "\xff"}', b"{"])
def test_the_first_line_may_be_the_malformed_one(tmp_path, bad):
    path = write(tmp_path, bad + b"\n" + line("a").encode() + b"\n" + line("b").encode())
    with pytest.raises(RolloutError) as caught:
        list(LogReader([path]))
    assert str(caught.value).startswith(f"{path}:1: ")
    assert ids(path, skip_bad=True) == ["a", "b"]


def test_a_document_is_located_by_line_and_column(tmp_path):
    text = FILES["owner__repo-6.traj"]
    cut = text[: text.index('"thought": "Mend."') + 12]
    path = write(tmp_path, cut, "x.traj")
    number = cut.count("\n") + 1
    with pytest.raises(RolloutError, match=rf"x\.traj: not JSON \(.*, line {number}, column \d+\); it ends too early"):
        list(LogReader([path]))
    path = write(tmp_path, b'{\n "trajectory": [\n "\xff"]}', "x.traj")
    with pytest.raises(RolloutError, match=r"x\.traj: not UTF-8 text \(line 3, byte 3: 0xff\)"):
        list(LogReader([path]))
    path = write(tmp_path, json.dumps([CHAT, {"task_id": "t"}], indent=1), "x.json")
    with pytest.raises(RolloutError, match=r"x\.json: item 1: no `messages`"):
        list(LogReader([path]))


def test_damaged_gzip(tmp_path):
    raw = gzip.compress(("\n".join(line(str(k)) for k in range(2000))).encode())
    path = write(tmp_path, raw[: len(raw) // 2], "log.jsonl.gz")
    with pytest.raises(RolloutError, match=r"log\.jsonl\.gz:\d+: damaged gzip data"):
        list(LogReader([path]))
    reader = LogReader([path], skip_bad=True)
    assert sum(1 for _ in reader) > 0
    assert reader.skipped >= 1


def test_files_that_are_not_there_or_hold_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        LogReader([tmp_path / "none.jsonl"])
    assert read_rollouts(write(tmp_path, "")) == []
    assert read_rollouts(write(tmp_path, "\n \r\n")) == []
    assert read_rollouts(write(tmp_path, gzip.compress(b""))) == []
    with pytest.raises(RolloutError, match="did you mean `search-r1`"):
        LogReader([tmp_path], "search-r2")
    with pytest.raises(RolloutError, match="not JSON"):
        list(LogReader([write(tmp_path, ALFWORLD_GAME, "x.txt")], "sweagent"))
    with pytest.raises(RolloutError, match=r"x\.bin:1: not UTF-8"):
        list(LogReader([write(tmp_path, b"\x80\x81\n\x00", "x.bin")]))


# --- folders and ids ---------------------------------------------------------------------------------------


def test_a_folder_is_read_recursively_in_sorted_order(tmp_path):
    for name, content in FILES.items():
        folder = tmp_path / ("a" if name > "n" else "b")
        folder.mkdir(exist_ok=True)
        write(folder, content, name)
    write(tmp_path, "model: x", "config.yaml")
    write(tmp_path, json.dumps({"model": "x"}), "config.json")
    write(tmp_path, json.dumps({"owner__repo-6": {"model_patch": "diff"}}, indent=1), "preds.json")
    write(tmp_path, "a note of mine", "notes.txt")
    reader = LogReader([tmp_path])
    found = [rollout.rollout_id for rollout in reader]
    separately = [ids(path) for path in sorted((tmp_path / "a").iterdir()) + sorted((tmp_path / "b").iterdir())]
    assert found == [name for names in separately for name in names]
    assert len(reader.passed_over) == 3
    assert reader.files == len(FILES)
    # A file that looks like a log and is malformed is not passed over.
    write(tmp_path, '{"messages": []}', "z.jsonl")
    with pytest.raises(RolloutError, match=r"z\.jsonl:1: no `task_id`"):
        list(LogReader([tmp_path]))


def test_a_folder_without_logs(tmp_path):
    write(tmp_path, json.dumps({"model": "x"}), "config.json")
    with pytest.raises(RolloutError, match=r"config\.json:1: not a log in a known format"):
        list(LogReader([tmp_path]))


def test_runs_of_one_instance_in_several_folders(tmp_path, monkeypatch):
    for run in ("run1", "run2", "run3"):
        (tmp_path / run).mkdir()
        write(tmp_path / run, FILES["owner__repo-6.traj"], "owner__repo-6.traj")
    rollouts = list(LogReader([tmp_path]))
    assert {r.task_id for r in rollouts} == {"owner__repo-6"}
    named = [f"run{n}/owner__repo-6" for n in (1, 2, 3)]
    assert [r.rollout_id for r in rollouts] == named
    # However the files are given.
    monkeypatch.chdir(tmp_path / "run2")
    folders = ["../run3", ".", tmp_path / "run1" / "owner__repo-6.traj"]
    assert [r.rollout_id for r in LogReader(folders)] == [named[2], named[1], named[0]]
    assert [r.rollout_id for r in LogReader(["."])] == ["owner__repo-6"]
    # The same file twice is a mistake, and so is an id that the logs themselves give twice.
    with pytest.raises(RolloutError, match=r"run1/owner__repo-6\.traj: this file is given twice; give it once"):
        LogReader([tmp_path / "run1", tmp_path / "run1"])
    with pytest.raises(RolloutError, match=r"given twice \(as .*/run2/owner__repo-6\.traj before\)"):
        LogReader([tmp_path, "."])
    for name in ("x.jsonl", "y.jsonl"):
        write(tmp_path / "run3", line("a"), name)
    with pytest.raises(RolloutError, match=r"rollout 'a' of task 't1' is in .*x\.jsonl:1 already"):
        list(LogReader([tmp_path / "run3"]))


def test_progress_grows_to_the_total(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path, "\n".join(line(f"{name}{k}") for k in range(300)), name)
    seen = []
    reader = LogReader([tmp_path], progress=lambda done, total: seen.append((done, total)))
    assert sum(1 for _ in reader) == 600
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {entry[1] for entry in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == total
