"""`rtmc report` without a browser: texts, the page's data, its size, the command, the images."""

import json
import math
import random
import re
import time
import zlib
from base64 import b64decode
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rtmc
from rtmc import Rollout, Step
from rtmc.cli import main
from rtmc.logs.credit import credit_logs
from rtmc.report.block import data_block
from rtmc.report.data import most_different, page_data, rounded
from rtmc.report.figures import compared, quadrant_counts, write_figures
from rtmc.report.page import page, write_report
from rtmc.report.texts import Collector, TextStore, action_text, script_json

METHODS = {"grpo": {}, "grpo_step": {}, "rtmc": {}}


def chat(task, rollout, actions, reward=None, **more):
    """A rollout whose observations are what was done last, so that equal beginnings meet."""
    messages = []
    for place, action in enumerate(actions):
        seen = actions[place - 1] if place else "start"
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": action}]
    known = {} if reward is None else {"reward": reward}
    return {"task_id": task, "rollout_id": rollout, "messages": messages, **known, **more}


LOG = [
    chat("fork", "good", ["a", "b"], 1.0),
    chat("fork", "bad", ["a", "c", "b"], 0.0),
    chat("dull", "one", ["a"], 0.0),
    chat("fork", "mute", ["a", "b"]),
    {"task_id": "fork", "rollout_id": "empty", "messages": [{"role": "user", "content": "start"}], "reward": 0.0},
]


def written(folder, records, name="log.jsonl"):
    file = folder / name
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def credited(folder, records, methods=METHODS, full_text=False, signatures="text"):
    collector = Collector(full_text)
    return credit_logs([written(folder, records)], methods, signatures, on_rollout=collector), collector


class Elements(HTMLParser):
    """The tags of a page and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs), ""])

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1][1] += data


def unpacked(block):
    if block.type == "application/json":
        return json.loads(block.text)
    return json.loads(zlib.decompress(b64decode(block.text), wbits=-15))


# Texts


@given(st.text(alphabet=st.characters() | st.sampled_from("<>!-/scriptSCRIPT\u2028\ud800\x00&")))
def test_json_of_any_text_cannot_leave_a_script(text):
    found = script_json({"text": text})
    assert "<" not in found
    found.encode("utf-8")
    assert json.loads(found) == {"text": text}


def test_texts_are_kept_once_and_cut_to_fit():
    store = TextStore()
    long = ["x" * 3000 + str(at) for at in range(10)]
    numbers = [store.add(text) for text in [*long, "short", "short", long[3]]]
    assert numbers == [*range(11), 10, 3]
    assert store.fitted(10**6) == [*long, "short"]
    cut = store.fitted(10_000, told=[2])
    assert len(script_json(cut)) <= 10_000
    assert len(cut[2]) == 1500
    assert cut[10] == "short"
    assert 850 < len(cut[0]) < 950  # nine share what the tenth leaves
    assert all(long[at].startswith(cut[at]) for at in range(10))
    assert TextStore(cut=False).texts == []


def test_whole_texts_stay_whole():
    store = TextStore(cut=False)
    text = "y" * 50_000
    store.add(text)
    assert store.fitted(10) == [text]


def test_what_is_held_is_bounded(monkeypatch):
    monkeypatch.setattr("rtmc.report.texts._HELD", 20_000)
    store = TextStore()
    first = store.add("0" * 6000)
    for at in range(1, 200):
        store.add(str(at) + " " * 6000)
    assert sum(map(len, store.texts)) <= 20_000
    assert store.lengths[first] == 6000
    assert store.texts[first].strip("0") == ""
    assert len(store.texts) == 200


@pytest.mark.parametrize(
    ("action", "call", "text"),
    [
        ("look", None, "look"),
        ("", {"name": "search", "arguments": '{"query": "Danube"}'}, 'search(query="Danube")'),
        ("ls -l", {"name": "bash", "arguments": {"command": "ls -l\n"}}, "ls -l"),
        ("Write", {"name": "write", "arguments": {"text": "a\nb", "n": 1}}, "Write\n\nwrite(\ntext=a\nb,\nn=1\n)"),
        ("", {"name": "odd", "arguments": "no json"}, "odd(no json)"),
        ("", {"name": "odd", "arguments": "[1]"}, "odd([1])"),
    ],
)
def test_the_text_of_an_action(action, call, text):
    assert action_text(Step("", action, tool_calls=[{"function": call}] if call else [])) == text


# What the page shows


def test_the_data_of_a_page(tmp_path):
    credit, collector = credited(tmp_path, LOG)
    data, _ = page_data(credit, collector)
    texts = collector.store.texts
    assert [task["id"] for task in data["tasks"]] == ["fork", "dull"]  # both verdicts first
    assert data["rollouts"]["id"] == ["good", "bad", "one", "mute", "empty"]
    assert data["rollouts"]["verdict"] == ["success", "failure", "failure", "unknown", "failure"]
    assert data["rollouts"]["outcome"] == [1, 0, 0, None, 0]
    assert data["rollouts"]["steps"] == [2, 3, 1, 2, 0]
    steps = data["steps"]
    assert [texts[at] for at in steps["did"]] == ["a", "b", "a", "c", "b", "a", "a", "b"]
    assert [texts[at] for at in steps["saw"]] == ["start", "a", "start", "a", "c", "start", "start", "a"]
    for name, column in zip(METHODS, data["advantages"], strict=True):
        truth = rtmc.advantages(credit.table, name).tolist()
        assert column == pytest.approx(truth, rel=1e-4, abs=1e-9)
    assert any(value != 0 for value in data["advantages"][2])
    # A rollout without a reward has an advantage of 0 by every method, and no values.
    assert steps["q"][6:] == [None, None]
    assert None not in steps["q"][:6]
    assert data["value"] == "rtmc"


def test_a_collector_of_other_rollouts_is_refused(tmp_path):
    credit, collector = credited(tmp_path, LOG)
    with pytest.raises(ValueError, match=r"rollout 'good' of task 'fork', 2 steps, is not what row 0"):
        page_data(credited(tmp_path, LOG[1:])[0], collector)
    with pytest.raises(ValueError, match="has not seen 5 rollouts"):
        page_data(credit, Collector())


def test_the_steps_that_differ_most():
    table = rtmc.StepTable.from_rows(
        {"group": 0, "rollout": r, "index": i, "state": f"s{i}", "action": a, "outcome": 1.0}
        for r in (0, 1)
        for i, a in enumerate("abc")
    )
    # Root mean squares 2 and 1/2: scaled (1, -1, 1) and (1, 1, -1); rows 3 to 5 repeat 0 to 2, but for row 5.
    x = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0, 2.0])
    y = torch.tensor([0.5, 0.5, -0.5, 0.5, 0.5, 0.5])
    assert most_different(table, x, y) == [(1, 2), (2, 1)]
    assert most_different(table, x, torch.zeros(6), count=1) == [(0, 2)]
    assert most_different(table, x * 0, y * 0) == []


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), max_size=30), st.sampled_from([0.0, 0.01, 0.5]))
def test_quadrants_by_enumeration(pairs, threshold):
    x, y = (torch.tensor([pair[at] for pair in pairs], dtype=torch.float64) for at in (0, 1))
    truth = [0] * 5
    for a, b in pairs:
        if abs(a) <= threshold or abs(b) <= threshold:
            truth[4] += 1
        else:
            truth[{(True, True): 0, (False, True): 1, (True, False): 2, (False, False): 3}[a > 0, b > 0]] += 1
    assert quadrant_counts(x, y, threshold) == truth


def test_which_methods_are_compared():
    assert compared(["grpo", "grpo_step", "rtmc"]) == (1, 2)
    assert compared(["rtmc", "gigpo"]) == (1, 0)
    assert compared(["grpo_step", "grpo"]) == (0, 1)


def test_what_is_left_of_a_zero_is_zero():
    assert rounded(torch.tensor([-1.1e-16, 0.123456, 3.0, math.nan], dtype=torch.float64)) == [0, 0.1235, 3, None]


def noise(count, length):
    """Rollouts whose texts hardly deflate."""
    draw = random.Random(0)
    for at in range(count):
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=length)) for _ in range(6)]
        yield chat(f"t{at % 3}", f"r{at}", words, float(at % 2))


def test_a_page_keeps_to_its_size(tmp_path):
    credit, collector = credited(tmp_path, noise(40, 2500))
    data, told = page_data(credit, collector)
    store = collector.store
    plain = data_block(data, store, told)
    assert (plain.type, plain.cut) == ("application/json", 0)
    assert unpacked(plain)["texts"] == store.texts
    packed = data_block(data, store, told, limit=600_000)
    assert (packed.type, packed.cut) == ("application/x-deflate", 0)  # deflating alone makes it fit
    assert unpacked(packed) == unpacked(plain)
    small = data_block(data, store, told, limit=150_000)
    assert 100_000 < len(small.text) <= 150_000
    found = unpacked(small)
    assert small.cut == len(found["lengths"]) > 200
    for at, text in enumerate(found["texts"]):
        assert store.texts[at].startswith(text)
        assert (len(text) < len(store.texts[at])) == (str(at) in found["lengths"])
    assert {key: found[key] for key in data} == json.loads(json.dumps(data))
    assert "<" not in small.text + plain.text


@pytest.mark.slow
def test_a_thousand_rollouts_fit(tmp_path):
    def long():
        draw = random.Random(0)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
        for at in range(1000):
            yield chat(
                f"t{at % 125}", f"r{at}", [" ".join(draw.choices(words, k=630)) for _ in range(20)], float(at % 3 == 0)
            )

    start = time.perf_counter()
    credit, collector = credited(tmp_path, long())
    middle = time.perf_counter()
    size = write_report(credit, collector, tmp_path / "page.html")
    seconds = time.perf_counter() - middle
    assert len(credit.table) == 20_000
    assert 4_000_000 < size == (tmp_path / "page.html").stat().st_size < 5_000_000
    assert seconds < 2 * (middle - start)  # the page is no more than twice what reading the logs takes


def test_full_text_is_whole(tmp_path):
    credit, collector = credited(tmp_path, [chat("t", "r", ["x" * 30_000, "y"], 1.0)], full_text=True)
    data, told = page_data(credit, collector)
    block = data_block(data, collector.store, told, limit=1000)
    assert "x" * 30_000 in unpacked(block)["texts"]
    assert block.cut == 0


EVIL = "</script><script>document.title='taken'</script><!--<img src=x onerror=alert(1)>{{ 7*7 }}"


def test_texts_of_logs_stay_text(tmp_path):
    records = [chat(EVIL, EVIL + str(at), [EVIL, EVIL + str(at)], float(at)) for at in (0, 1)]
    plain = page(*credited(tmp_path, [chat("t", str(at), ["a", "b" + str(at)], float(at)) for at in (0, 1)]))
    text = page(*credited(tmp_path, records), title=EVIL)
    assert "img" not in Elements(text).tags
    assert [attrs.get("type") for attrs, _ in Elements(text).scripts] == ["application/json", None]
    assert Elements(text).scripts[1][1] == Elements(plain).scripts[1][1]
    assert EVIL in json.loads(Elements(text).scripts[0][1])["texts"]
    assert "{{ 7*7 }}" in text


def test_the_page_reaches_for_nothing(tmp_path):
    text = page(*credited(tmp_path, LOG))
    own = text[: text.index('<script type="application/json"')] + Elements(text).scripts[1][1]
    assert set(re.findall(r"https?://[^\s\"']+", own)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|outerHTML|\beval\(", own)


def test_the_same_logs_give_the_same_page(tmp_path):
    assert page(*credited(tmp_path, LOG)) == page(*credited(tmp_path, LOG))


def test_a_lone_surrogate(tmp_path):
    record = chat("t\udc80", "r\udc80", ["a\udc80", "b"], 1.0)
    collector = Collector()
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(record) + "\n")
    credit = credit_logs([file], METHODS, "text", on_rollout=collector)
    write_report(credit, collector, tmp_path / "out.html")
    assert "a\\udc80" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_collectors_texts_tell_collisions_apart():
    collector = Collector()
    long = "z" * 5000
    collector(Rollout("t", "r", [Step(long + "1", long + "1"), Step(long + "2", long + "1")], 1.0))
    kept = collector.rollouts[0].rollout.steps
    assert kept[0].observation != kept[1].observation
    assert kept[0].action == kept[1].action
    assert all(len(step.observation) < 400 and step.observation.startswith(long[:300]) for step in kept)


# The command


def run(capsys, *words):
    status = main(["report", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_writes_a_page(tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    status, text, err = run(capsys, written(tmp_path, LOG), "-o", out, "--signatures", "text")
    assert (status, err) == (0, "")
    assert f"note: the folder {tmp_path / 'new'} was not there and was made" in text
    assert text.splitlines()[0] == "5 rollouts, 2 tasks, 8 steps"
    assert "note: the reward of 1 of 5 rollouts is unknown" in text
    data = json.loads(Elements(out.read_text(encoding="utf-8")).scripts[0][1])
    assert data["methods"] == ["grpo", "grpo_step", "rtmc"]


def test_the_command_as_json(tmp_path, capsys):
    out = tmp_path / "page.html"
    status, text, _ = run(
        capsys, written(tmp_path, LOG), "-o", out, "--json", "--method", "rtmc", "--png", tmp_path / "p"
    )
    document = json.loads(text)
    assert status == 0
    assert document["bytes"] == out.stat().st_size
    assert document["rewards"] == {"known": 4, "unknown": 1, "from_sidecar": 0}
    assert len(document["figures"]) == 4  # states and advantages of two tasks; quadrants want two methods
    assert "steps" not in document


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["log.jsonl", "-o", "."], "is a folder"),
        (["log.jsonl", "-o", "log.jsonl"], "this file is read and would be replaced"),
        (["log.jsonl", "--rewards", "run=log.jsonl", "-o", "log.jsonl"], "this file is read and would be replaced"),
        (["log.jsonl", "--png", "log.jsonl"], "is a file"),
        (["log.jsonl", "--method", "rtmcc"], "Did you mean"),
        (["bad.jsonl"], "bad.jsonl"),
        (["log.jsonl", "--full-txt"], "--full-text"),
    ],
)
def test_bad_input_is_one_line_and_no_page(tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, LOG)
    (tmp_path / "bad.jsonl").write_text('{"task_id": "t", "messages": [\n')
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert told.lower() in err.lower()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "log.jsonl"]


def test_an_older_page_stays_where_the_new_one_fails(tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("old")
    (tmp_path / "bad.jsonl").write_text("{")
    assert run(capsys, tmp_path / "bad.jsonl", "-o", out)[0] == 2
    assert out.read_text() == "old"


def test_images_are_drawn(tmp_path):
    credit, _ = credited(tmp_path, LOG)
    paths = write_figures(credit, tmp_path / "png")
    names = ["01-fork-states.png", "01-fork-advantages.png", "02-dull-states.png", "02-dull-advantages.png"]
    assert [path.name for path in paths] == [*names, "quadrants.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def figures(monkeypatch, credit, folder):
    """name -> Figure, as they are drawn."""
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    return dict(zip([path.name for path in write_figures(credit, folder)], drawn, strict=True))


def test_the_image_of_states_names_the_actions_in_letters_that_can_be_read(tmp_path, monkeypatch):
    from matplotlib.colors import to_rgb

    credit, _ = credited(tmp_path, LOG)
    axes = figures(monkeypatch, credit, tmp_path / "png")["01-fork-states.png"].axes[0]
    texts = {text.get_text() for text in axes.texts}
    assert set(credit.table.action_names) & texts
    circles = [line for line in axes.lines if line.get_marker() in "os" and line.get_markersize() == 15]
    numbers = [text for text in axes.texts if text.get_fontsize() == 8]
    assert len(circles) == len(numbers)
    for circle, text in zip(circles, numbers, strict=True):
        light = [
            float(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True)))
            for colour in (circle.get_markerfacecolor(), text.get_color())
        ]
        assert abs(light[0] - light[1]) > 0.49  # the better of black and white


def test_a_panel_of_zeros_says_so(tmp_path, monkeypatch):
    credit, _ = credited(tmp_path, LOG)
    panels = figures(monkeypatch, credit, tmp_path / "png")["02-dull-advantages.png"].axes
    told = ["0 in every step" in [text.get_text() for text in axes.texts] for axes in panels]
    flat = [all(bar.get_height() == 0 for bar in axes.patches) for axes in panels]
    assert told == flat
    assert any(flat)
