"""Run benchmarks: ``python bench/run.py credit|kernels|... [--quick] [--json]``.

A benchmark NAME is the file bench_NAME.py beside this one. It holds ``TESTS`` (the tests of what it measures, run
first: where one fails nothing is timed), and ``cases(quick)``, which yields ``measure.Case``. Each run prints a table
and appends one JSON line a candidate to results.jsonl, with the commit, the versions and the device.

``--quick`` takes smaller inputs and fewer rounds. ``--json`` prints one JSON document on standard output and the tables
on standard error. Exit status: 0, or 1 where a test failed or results disagree, or 2 for a name that does not exist.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def tests_hold(tests: list[str]) -> bool:
    """Whether the tests of what is to be measured pass; their output is shown only where they do not."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return done.returncode == 0


def main(argv: list[str] | None = None) -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure, beside a peer, in the same run.")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="smaller inputs, fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in names]
    if unknown:
        print(f"bench: {unknown[0]!r} does not exist; there are: {', '.join(names)}", file=sys.stderr)
        return 2

    # Threads that spin while they wait starve one another on a busy machine: ten times slower and no measurement.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.path[:0] = [str(HERE), str(ROOT)]
    import measure

    out = sys.stderr if args.json else sys.stdout
    everything = []
    for name in args.names:
        bench = importlib.import_module(f"bench_{name}")
        print(f"{name}: running the tests of what is measured", file=out, flush=True)
        if not tests_hold(bench.TESTS):
            print(f"{name}: a test fails, so nothing was measured", file=sys.stderr)
            return 1
        records = []
        for case in bench.cases(args.quick):
            try:
                records += measure.measure(case, rounds=7 if args.quick else 21)
            except AssertionError as disagreement:
                print(f"{name}: {disagreement}", file=sys.stderr)
                return 1
        path = measure.append(name, records)
        print(measure.table(records), file=out)
        for note in getattr(bench, "NOTES", []):
            print(note, file=out)
        print(f"appended to {path.relative_to(ROOT)}", file=out, flush=True)
        everything += [{"bench": name, **record} for record in records]
    if args.json:
        print(json.dumps({"where": measure.surroundings(), "records": everything}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
