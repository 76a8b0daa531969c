"""Signatures of agent logs: 3,200 steps of software engineering with answers of 4 kB, from rollouts to a step table.

Every command is new to the cache of understood commands, as in a log that is read once. The peer of the signatures is
the plainest one, `text`, which understands nothing: what is left is tabulation. The third case puts the advantages
beside the table they are computed from; they should cost no more than a hundredth of it.

Not here: reading files (the readers' own benchmark), and how well a signature merges (`signature_quality`).
"""

import random
from collections.abc import Iterator

from measure import Case

import rtmc
from rtmc.signatures import commands

TESTS = ["tests/test_signatures_swe.py", "tests/test_signatures_outcomes.py", "tests/test_signatures_shell.py"]


def make_rollouts(rng: random.Random, count: int, steps: int) -> list[rtmc.Rollout]:
    """Rollouts of eight a task; a step is one block of bash and an answer of about 4 kB."""
    made = []
    for number in range(count):
        path = []
        for _ in range(steps):
            file, line = f"src/pkg/module_{rng.randrange(40)}.py", rng.randrange(1, 900)
            command = rng.choice(
                (
                    f"cd /testbed && sed -n '{line},{line + 80}p' {file}",
                    f"cd /testbed && grep -rn 'def run_{line}' {file} | head -{line % 40}",
                    f"cd /testbed && sed -i '{line}s/foo{line}/bar{line}/' {file}",
                    f"cd /testbed && python -m pytest tests/test_{line}.py -q 2>&1 | tail -20",
                    f"cat > /testbed/{file} <<'EOF'\nimport os\nprint({line})\n{'x = 1' * 40}\nEOF",
                    f"cd /testbed && python reproduce_{line}.py",
                )
            )
            shown = "\n".join(f"{n:6d}\tline of text number {n}, value={rng.random()}" for n in range(75))
            answer = f"<returncode>{rng.randrange(2)}</returncode>\n<output>\n{shown}\n</output>"
            path.append(rtmc.Step("", f"THOUGHT: I look.\n\n```bash\n{command}\n```", answer=answer))
        made.append(rtmc.Rollout(f"task {number // 8}", str(number), path, reward=float(rng.random() < 0.5)))
    return made


def cases(quick: bool) -> Iterator[Case]:
    count, steps = (16, 20) if quick else (64, 50)
    rollouts = make_rollouts(random.Random(0), count, steps)
    label = f"{count * steps:,} SWE steps"

    def tabulated():
        commands._kept.cache_clear()
        return rtmc.tabulate(rollouts, signatures="swe")

    def as_text():
        return rtmc.tabulate(rollouts, signatures="text")

    yield Case(f"{label}: signatures and table", {"swe": tabulated, "text, which understands nothing": as_text})
    table = tabulated()
    yield Case(
        f"{label}: advantages beside their table",
        {'rtmc.advantages(table, "rtmc")': lambda: rtmc.advantages(table, "rtmc"), "signatures and table": tabulated},
    )
