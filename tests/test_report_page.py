"""The page of `rtmc report` in a browser: it draws, is used by mouse and by keyboard, small, dark, and safe."""

import base64
import json
import random
import zlib

import pytest

import rtmc
from rtmc.logs.credit import credit_logs
from rtmc.report import Collector, write_report
from rtmc.report import block as block_module
from rtmc.report.figures import quadrant_counts
from tests.chromium import browser_path, chromium
from tests.test_report import EVIL, LOG, METHODS, chat, noise, written

pytestmark = pytest.mark.skipif(
    browser_path() is None, reason="needs chromium or google-chrome on the path (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def report(folder, records, signatures="text", **options):
    collector = Collector(**options)
    paths = [written(folder, records)] if isinstance(records, list) else [records]
    credit = credit_logs(paths, METHODS, signatures, on_rollout=collector)
    write_report(credit, collector, folder / "report.html")
    return folder / "report.html", credit


NODES = "#tree-figure svg [role=button]"
BARS = "#bars-figure svg [role=button]"


# What can be scrolled sideways of what should not: the page, the panel.
TOO_WIDE = (
    "[document.documentElement, document.getElementById('reader')]"
    ".filter(e => e.scrollWidth > Math.min(e.clientWidth, innerWidth)).map(e => e.tagName + ' ' + e.scrollWidth)"
)


def reader_text(browser):
    return browser.run("document.getElementById('reader').open ? document.getElementById('reader').innerText : ''")


def unfold(browser, selector):
    """Open the closed folds, and wait for what is made only then: the browser tells of it in an event of its own."""
    browser.run(
        f"Promise.all([...document.querySelectorAll('{selector}')].filter(d => !d.open).map(d => new Promise(done =>"
        " { d.addEventListener('toggle', done, {once: true}); d.open = true; }))).then(() => null)"
    )


def test_it_draws_without_a_complaint(browser, tmp_path):
    path, credit = report(tmp_path, LOG)
    browser.open(path)
    assert browser.errors == []
    assert browser.requests[1:] in ([], ["data:,"])
    # start, a, c; two ends after b (won, unknown), one of the lost
    assert browser.run(f"document.querySelectorAll('{NODES}').length") == 6
    assert browser.run("document.querySelectorAll('#tree-figure path.edge').length") == 5
    assert browser.run(f"document.querySelectorAll('{BARS}').length") == 3 * 7  # three methods, seven steps
    assert "1 of 3 solved, 1 unknown" in browser.run("document.getElementById('task-facts').textContent")
    assert "the reward of 1 of 5 rollouts is unknown" in browser.run("document.body.innerText")
    longest = "Math.max(...[...document.querySelectorAll('#bars-figure rect.mark')].map(r => r.getBBox().height))"
    assert 20 < browser.run(longest) <= 28
    assert len(credit.table) == 8


def test_a_click_on_a_state_opens_its_steps(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    browser.click(NODES)
    text = reader_text(browser)
    assert "State at depth 0, 3 steps of 3 rollouts" in text
    assert "What the model saw\nstart" in text
    browser.press("Escape")
    assert reader_text(browser) == ""
    browser.click(BARS)
    assert "Step 0 of good" in reader_text(browser)
    browser.click("#reader [aria-label='Next step']")
    text = reader_text(browser)
    assert "Step 1 of good" in text
    assert "What it did\nb" in text
    assert browser.run("document.querySelector('#reader [aria-label=\"Next step\"]').disabled")


def test_it_is_read_without_a_mouse(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    inside = "!!document.activeElement.closest('#tree-figure svg')"
    for _ in range(40):
        browser.press("Tab")
        if browser.run(inside):
            break
    assert browser.run(inside)
    label = "document.activeElement.getAttribute('aria-label')"
    assert browser.run(label).startswith("State at depth 0")
    browser.press("ArrowRight")
    assert browser.run(label).startswith("State at depth 1, 3 steps")
    browser.press("Enter")
    assert "State at depth 1" in reader_text(browser)
    assert browser.run("document.activeElement.closest('#reader') !== null")
    browser.press("Escape")
    assert browser.run(label).startswith("State at depth 1")  # the focus is back where it was
    browser.press("Tab")
    assert not browser.run(inside)  # one stop for the whole figure
    for _ in range(40):
        browser.press("Tab")
        if browser.run("!!document.activeElement.closest('#bars-figure svg')"):
            break
    browser.press("ArrowRight")
    browser.press(" ")
    assert "Step 1 of good" in reader_text(browser)


def test_everything_that_is_used_has_a_name(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    unfold(browser, "details")
    nameless = browser.run(
        "[...document.querySelectorAll('button, select, input, [role=button], [role=group], [role=region]')]"
        ".filter(e => "
        "!(e.getAttribute('aria-label') || e.textContent.trim() && e.tagName !== 'SELECT' || e.closest('label') || "
        "document.querySelector(`label[for='${e.id}']`))).map(e => e.outerHTML.slice(0, 200))"
    )
    assert nameless == []
    # A table stands behind each figure: the states, each of three rollouts with steps, the quadrants.
    labels = browser.run("[...document.querySelectorAll('[role=region]')].map(e => e.getAttribute('aria-label'))")
    assert labels.count("States and actions") == 1
    assert labels.count("Advantages of the steps") == 3
    assert "Quadrants, a table" in labels


def test_the_table_behind_the_bars_holds_the_advantages(browser, tmp_path):
    path, credit = report(tmp_path, LOG)
    browser.open(path)
    unfold(browser, "#bars-figure details")
    rows = browser.run(
        "[...document.querySelectorAll('#bars-figure details tbody tr')]"
        ".map(r => [...r.cells].slice(2).map(c => c.innerText))"
    )
    truth = [rtmc.advantages(credit.table, name).tolist() for name in METHODS]
    found = [[float(cell.replace("−", "-")) for cell in row] for row in rows]
    assert found == [[pytest.approx(column[row], abs=5e-4) for column in truth] for row in range(7)]


def test_quadrants_follow_the_threshold_and_the_methods(browser, tmp_path):
    path, credit = report(tmp_path, list(noise(12, 8)) + LOG)
    browser.open(path)
    known = credit.table.outcome[credit.table.rollout]
    for names, threshold in [
        (("grpo_step", "rtmc"), 0.01),
        (("grpo_step", "rtmc"), 0.3),
        (("rtmc", "grpo_step"), 0.3),
        (("rtmc", "grpo"), 2),
    ]:
        fields = {
            "input": str(threshold),
            **{f"label:nth-of-type({at}) select": list(METHODS).index(name) for at, name in enumerate(names, 1)},
        }
        for selector, value in fields.items():
            browser.run(
                f"(() => {{ const e = document.querySelector('#quadrant-tools {selector}'); e.value = '{value}'; "
                f"e.dispatchEvent(new Event('{'input' if selector == 'input' else 'change'}')); }})()"
            )
        cells = browser.run(
            "[...document.querySelectorAll('#quadrant-figure tbody tr')]"
            ".map(r => [...r.cells].slice(1).map(c => parseInt(c.innerText)))"
        )
        x, y = (credit.estimates[name].advantage for name in names)
        by_verdict = [quadrant_counts(x[rows], y[rows], threshold) for rows in (known > 0, known == 0, known.isnan())]
        assert [list(column) for column in zip(*cells, strict=True)] == by_verdict
    assert sum(by_verdict[0][:4]) == 0


def test_a_script_in_a_log_stays_text(browser, tmp_path):
    records = [chat(EVIL, EVIL + str(at), [EVIL, EVIL + str(at)], float(at)) for at in (0, 1)]
    path, _ = report(tmp_path, records)
    browser.open(path)
    browser.click(NODES)
    unfold(browser, "details")
    assert EVIL in reader_text(browser)
    assert browser.errors == []
    assert browser.run("document.title") == "2 rollouts of 1 task – rtmc report"
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 2


def test_nothing_else_can_run(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("<main>", "<main><script>document.title = 'taken'</script>"), encoding="utf-8")
    browser.open(path)
    assert browser.run("document.title") != "taken"
    assert any("Content Security Policy" in error for error in browser.errors)


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_no_wider_than_the_window(browser, tmp_path, width):
    wide = [
        chat("task-" + "n" * 200, f"r{at}-" + "m" * 200, ["w" * 300 + str(i * at) for i in range(15)], at % 2)
        for at in range(3)
    ]
    path, _ = report(tmp_path, wide)
    browser.open(path, width)
    assert browser.run(TOO_WIDE) == []
    unfold(browser, "details")
    browser.click(BARS)
    assert "Step 0" in reader_text(browser)
    assert browser.run(TOO_WIDE) == []


def luminance(text):
    channels = [int(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_scheme_and_can_be_read(browser, tmp_path, dark):
    path, _ = report(tmp_path, LOG)
    browser.open(path, dark=dark)
    back = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert (back < 0.1) == dark
    for name in ("body", ".dim", ".success", ".failure", ".unknown", "a", ".small"):
        front = luminance(browser.run(f"getComputedStyle(document.querySelector('{name}')).color"))
        high, low = max(front, back), min(front, back)
        assert (high + 0.05) / (low + 0.05) >= 4.5, name  # what WCAG 2.2 asks of text


def test_a_packed_page_shows_what_a_plain_one_does(browser, tmp_path, monkeypatch):
    path, _ = report(tmp_path, list(noise(20, 2500)))
    browser.open(path)
    plain = browser.run("JSON.stringify(DATA)")
    monkeypatch.setattr(block_module, "BLOCK_BYTES", 300_000)
    path, _ = report(tmp_path, list(noise(20, 2500)))
    assert 'type="application/x-deflate"' in path.read_text(encoding="utf-8")
    browser.open(path)
    assert browser.errors == []
    assert browser.run("JSON.stringify(DATA)") == plain


def test_any_deflated_data_is_unpacked(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    draw = random.Random(1)
    inputs = [
        b"",
        b"a",
        b"abc" * 40_000,
        draw.randbytes(70_000),
        bytes(draw.choices(range(256), [0.98**at for at in range(256)], k=50_000)),
        "".join(draw.choices(["the ", "rollout ", "ß✓ ", "state\n"], k=9000)).encode(),
    ]
    for data in inputs:
        for level, strategy in [(0, 0), (1, 0), (9, 0), (6, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY), (6, zlib.Z_RLE)]:
            packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
            packed = base64.b64encode(packer.compress(data) + packer.flush()).decode()
            script = (
                f"(() => {{ const packed = Uint8Array.from(atob('{packed}'), c => c.charCodeAt(0)); "
                f"const found = inflate(packed, {len(data)}); "
                "let text = ''; for (const byte of found) text += String.fromCharCode(byte); return btoa(text); })()"
            )
            assert base64.b64decode(browser.run(script)) == data, (len(data), level, strategy)


def test_one_method_and_no_steps(browser, tmp_path):
    collector = Collector()
    credit = credit_logs([written(tmp_path, LOG[4:])], {"rtmc": {}}, on_rollout=collector)
    write_report(credit, collector, tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.errors == []
    text = browser.run("document.body.innerText")
    assert "have no steps" in text
    assert "needs two methods" in text


def test_zoom_and_the_next_task(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    wide = "document.querySelector('#tree-figure svg').getBoundingClientRect().width"
    before = browser.run(wide)
    browser.click("#tree-tools [aria-label='Zoom in']")
    assert browser.run(wide) == pytest.approx(1.25 * before, rel=0.02)
    browser.click("#task-after")
    assert "2 of 2: 1 rollout, 0 of 1 solved" in browser.run("document.getElementById('task-facts').textContent")
    assert browser.run(f"document.querySelectorAll('{NODES}').length") == 2


@pytest.mark.parametrize("name", ["hotpot_react.jsonl", "sweagent"])
def test_real_logs(browser, shared, tmp_path, name):
    path, credit = report(tmp_path, shared / "data" / name, "auto")
    for width, dark in ((1280, False), (400, True)):
        browser.open(path, width, dark=dark)
        assert browser.errors == []
        assert browser.run(TOO_WIDE) == []
        assert browser.run(f"document.querySelectorAll('{NODES}').length") > 3
    tasks = json.loads(browser.run("JSON.stringify(DATA.tasks.map(t => t.rollouts.length))"))
    assert sum(tasks) == credit.table.n_rollouts
    browser.run("DATA.tasks.forEach((_, at) => showTask(at))")
    assert browser.errors == []


def test_a_threshold_that_is_none_is_told(browser, tmp_path):
    path, _ = report(tmp_path, LOG)
    browser.open(path)
    for value in ("-1", ""):
        browser.run(
            "(() => { const e = document.querySelector('#quadrant-tools input'); "
            f"e.value = '{value}'; e.dispatchEvent(new Event('input')); }})()"
        )
        assert "a number, 0 or more" in browser.run("document.getElementById('quadrant-figure').innerText")
    browser.run(
        "(() => { const e = document.querySelector('#quadrant-tools input'); "
        "e.value = '0.1'; e.dispatchEvent(new Event('input')); })()"
    )
    assert "0.1 by one or both" in browser.run("document.getElementById('quadrant-figure').innerText")
    assert browser.errors == []


def test_a_small_task_is_seen_at_once_and_no_label_touches_another(browser, tmp_path):
    # Ten steps, of which the fourth differs from rollout to rollout: four states lead into the next one.
    steps = [f"the action {n} of the agent" for n in range(10)]
    records = [chat("long", str(k), [*steps[:3], f"the fourth action {k}", *steps[4:]], k % 2) for k in range(4)]
    path, _ = report(tmp_path, records)
    browser.open(path, 1200, 900)
    wide = browser.run(
        "(() => { const f = document.querySelector('.figure'); return [f.scrollWidth, f.clientWidth]; })()"
    )
    assert wide[0] <= wide[1]
    boxes = browser.run(
        "[...document.querySelectorAll('#tree-figure text.sub')].map(e => { const b = e.getBoundingClientRect(); "
        "return [b.left, b.right, b.top + 2, b.bottom - 2]; })"
    )
    assert len(boxes) >= 9
    for at, one in enumerate(boxes):
        for other in boxes[:at]:
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, (one, other)
