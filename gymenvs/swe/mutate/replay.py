"""Runs pieces of code one by one and says how each ends: inside the sandbox, by the standard library alone.

Its text is given to `python -c`, so nothing of this package may be imported. On standard input comes a JSON list of
pieces; each runs in a process of its own. At the end it prints one line, `MARK` and a JSON list: the name of the
exception that a piece ended with, "" = none, null = it broke off or ran too long.
"""

import json
import subprocess
import sys

MARK = "@@rtmc-replayed "
LIMIT_S = 10.0
_RUN = """
import sys
ended = ""
try:
    exec(compile(sys.stdin.read(), "example.py", "exec"), {"__name__": "__main__"})
except BaseException as error:
    ended = type(error).__name__
sys.stdout.flush()
print("\\n" + sys.argv[1] + ended)
"""


def _ending(piece):
    try:
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", _RUN, MARK], input=piece, capture_output=True, text=True,
            timeout=LIMIT_S, check=False, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    last = done.stdout.splitlines()[-1:]
    return last[0].removeprefix(MARK) if last and last[0].startswith(MARK) else None


def main():
    endings = [_ending(piece) for piece in json.load(sys.stdin)]
    print("\n" + MARK + json.dumps(endings))


if __name__ == "__main__":
    main()
