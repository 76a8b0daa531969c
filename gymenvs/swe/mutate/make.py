"""From packages to tasks: mutants are made, judged several at a time, and written down.

    with Journal(path) as journal:
        made = make_tasks(bench, settings, journal)
    made.tasks, made.counts

Before a task counts, the real grader has paid its gold patch 1.0 and the untouched tree 0.0, by `soundness.check_task`
and once each: a suite that runs well may still be one whose results it does not believe.

The same package, seed and kinds give the same mutants in the same order, however many are judged at once: a task
counts by its mutant's place in that order, and what lies beyond the last one wanted is not used.

Difficulty, from what can be counted: a point each for at most two failing tests, for three or more calls from the test
down to the changed function (or none seen), for a package of more than 400 lines, and for two sites. No point or one is
"easy", two are "medium", three or four "hard".
"""

import ast
import hashlib
import itertools
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rtmc.gymenvs.swe.difftext import make_patch
from rtmc.gymenvs.swe.mutate import replay, validate
from rtmc.gymenvs.swe.mutate.describe import describe, hidden_files
from rtmc.gymenvs.swe.mutate.journal import Journal
from rtmc.gymenvs.swe.mutate.mutants import KINDS, Mutant, mutants
from rtmc.gymenvs.swe.mutate.text import Source
from rtmc.gymenvs.swe.mutate.validate import ACCEPTED, Baseline, Bench
from rtmc.gymenvs.swe.soundness import check_task
from rtmc.gymenvs.swe.sources import source_json
from rtmc.gymenvs.swe.task import Folder, Sdist, SWETask

_FORMAT = 3  # of the journal's records: another number makes old ones unfindable
_FAR, _LARGE, _FEW = 3, 400, 2
_NAMES = ("easy", "easy", "medium", "hard", "hard")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for.

    count: tasks wanted of the package. seed, kinds: of the mutants. jobs: mutants judged at once. limit_s: for one run
    of a mutant; None = set by the clean runs. most: mutants judged at most; None = as many as there are.
    """

    count: int = 20
    seed: int = 0
    kinds: tuple[str, ...] = KINDS
    jobs: int = 2
    limit_s: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("jobs", self.jobs), ("most", self.most)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.limit_s is not None and not self.limit_s > 0:
            raise ValueError(f"limit_s must be above 0, got {self.limit_s}")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ValueError(f"kinds holds {unknown[0] if unknown else 'nothing'!r}; there are {', '.join(KINDS)}")


@dataclass
class Made:
    """The tasks of one package, and what became of its mutants.

    counts: status -> mutants (`validate.ACCEPTED`, `SURVIVED` and `REJECTIONS`). by_kind: kind -> status -> mutants.
    refused: what the grader says of the right code (`NOT_PAID`) or else of the task (`UNSOUND`) -> mutants.
    """

    package: str
    baseline: Baseline
    tasks: list[SWETask] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def mutants(self) -> int:
        return sum(self.counts.values())

    @property
    def killed(self) -> int:
        """Mutants that the suite noticed in any way."""
        return self.mutants - self.counts[validate.SURVIVED]

    def to_json(self) -> dict[str, Any]:
        base = self.baseline
        return {
            "package": self.package,
            "tasks": len(self.tasks),
            "mutants": self.mutants,
            "killed": self.killed,
            "survived": self.counts[validate.SURVIVED],
            "rejected": {name: self.counts[name] for name in validate.REJECTIONS if self.counts[name]},
            "refused": dict(self.refused),
            "by_kind": {kind: dict(counts) for kind, counts in sorted(self.by_kind.items())},
            "difficulty": dict(Counter(task.difficulty for task in self.tasks)),
            "tests": {"stable": len(base.stable), "failing": len(base.failing), "flaky": list(base.flaky)},
            "seconds_clean": round(base.seconds, 2),
            "limit_s": round(base.limit_s, 2),
        }


Progress = Callable[[Made, int], None]


def make_tasks(
    bench: Bench,
    origin: Sdist | Folder,
    settings: Settings,
    journal: Journal,
    progress: Progress | None = None,
    stopping: Callable[[float], None] | None = None,
) -> Made:
    """Tasks of one package.

    Args:
        bench: with the package; not yet measured.
        origin: where the package's source comes from, for the tasks.
        journal: what it holds of this package is taken as found, the rest is added.
        progress: called with what is made and the number wanted, after every mutant.
        stopping: called at an interrupt with the seconds that a run which has begun may still take: it is waited for.

    Raises:
        ValueError: the suite cannot be run, or has no stable test.
    """
    package = bench.package
    key = _key(bench, origin, settings)
    bench, baseline = _measured(bench, settings, journal, key)
    made = Made(package.title, baseline)
    stream = itertools.islice(mutants(package.modules, settings.seed, settings.kinds), settings.most)
    with ThreadPoolExecutor(settings.jobs, thread_name_prefix="rtmc-mutant") as pool:
        waiting: deque[tuple[Mutant, Future[dict[str, Any]]]] = deque()
        try:
            while True:
                for mutant in itertools.islice(stream, settings.jobs + 1 - len(waiting)):
                    name = f"{key}:{_digest(mutant)}"
                    waiting.append((mutant, pool.submit(_record, bench, baseline, origin, mutant, journal, name)))
                if not waiting or len(made.tasks) == settings.count:
                    break
                mutant, future = waiting.popleft()
                _count(made, mutant, future.result())
                if progress is not None:
                    progress(made, settings.count)
        except KeyboardInterrupt:
            bench.stop.set()
            if stopping is not None:
                stopping(bench.limit_s + replay.LIMIT_S)
            raise
        finally:
            for _, future in waiting:
                future.cancel()
    return made


def _key(bench: Bench, origin: Sdist | Folder, settings: Settings) -> str:
    """Names everything that the records of a package depend on, but the mutant itself."""
    limit = settings.limit_s
    parts = [_FORMAT, source_json(origin), bench.package.digest, limit, bench.runtime.python, list(bench.needs)]
    return f"{bench.package.title}:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _digest(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.path.encode() + b"\0" + mutant.data).hexdigest()[:16]


def _measured(bench: Bench, settings: Settings, journal: Journal, key: str) -> tuple[Bench, Baseline]:
    kept = journal.get(key)
    if kept is not None:
        lists = {name: tuple(kept[name]) for name in ("stable", "flaky", "failing")}
        baseline = Baseline(**{**kept, **lists})
        return replace(bench, limit_s=baseline.limit_s, command=baseline.command), baseline
    bench, baseline = validate.measure(bench, settings.limit_s)
    journal.put(key, asdict(baseline))
    return bench, baseline


def _record(
    bench: Bench, baseline: Baseline, origin: Sdist | Folder, mutant: Mutant, journal: Journal, name: str
) -> dict[str, Any]:
    """What became of a mutant: its status, and its task if it makes one."""
    kept = journal.get(name)
    if kept is not None:
        return kept
    judged = validate.judge(bench, baseline, mutant)
    record: dict[str, Any] = {"kind": mutant.kind, "status": judged.status, "seconds": round(judged.seconds, 3)}
    if judged.status == ACCEPTED:
        task = _task(bench, baseline, origin, mutant, judged.fail_to_pass, judged.pass_to_pass)
        if isinstance(task, str):
            record["status"] = task
        else:
            record["status"], record["why"] = _graded(bench, task)
            if record["status"] == ACCEPTED:
                record["task"] = task.to_json()
    journal.put(name, record)
    return record


def _graded(bench: Bench, task: SWETask) -> tuple[str, str]:
    """The status of a task that the real grader has seen, and what it says where it refuses it. Raises Stopped."""
    bench.check_not_stopped()
    check = check_task(task, runs=1, backend=bench.backend, trusted=bench.trusted)
    if check.sound:
        return ACCEPTED, ""
    return (validate.NOT_PAID if check.gold and check.gold[0] < 1 else validate.UNSOUND), check.why


def _count(made: Made, mutant: Mutant, record: dict[str, Any]) -> None:
    made.counts[record["status"]] += 1
    made.by_kind.setdefault(mutant.kind, Counter())[record["status"]] += 1
    if record.get("why"):
        made.refused[record["why"]] += 1
    if "task" in record:
        made.tasks.append(SWETask.from_json(record["task"]))


def _task(
    bench: Bench,
    baseline: Baseline,
    origin: Sdist | Folder,
    mutant: Mutant,
    fails: tuple[str, ...],
    passes: tuple[str, ...],
) -> SWETask | str:
    """The task, or the status that says why there is none."""
    package = bench.package
    told = describe(bench, mutant, fails, list(changed_functions(mutant)))
    if not told.text:
        return told.status
    old = next(source.data for source in package.modules if source.name == mutant.path)
    return SWETask(
        task_id=f"{package.title}.{mutant.kind.replace(' ', '-')}.{_digest(mutant)[:8]}",
        problem_statement=told.text,
        source=origin,
        fail_to_pass=fails,
        pass_to_pass=passes,
        bug_patch=make_patch({mutant.path: old}, {mutant.path: mutant.data}),
        hidden_files=hidden_files(fails),
        test_command=bench.command,
        python_packages=bench.needs,
        difficulty=difficulty(len(fails), told.depth, package.code_lines, len(mutant.sites)),
        env=bench.env,
        timeout_s=max(60.0, 2 * baseline.limit_s),
        meta={"kind": mutant.kind, "sites": [list(site) for site in mutant.sites], "depth": told.depth},
    )


def write_tasks(path: Path, tasks: Sequence[SWETask]) -> int:
    """Write tasks as JSON lines, whole or not at all; gives their number. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(task.to_json(), ensure_ascii=False) + "\n" for task in tasks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return len(tasks)


def difficulty(failing: int, depth: int | None, code_lines: int, sites: int) -> str:
    """ "easy", "medium" or "hard" by the rule at the top of this module.

    depth: calls from the test to the changed function, 1 = called by the test; None = not seen.
    """
    points = (failing <= _FEW) + (depth is None or depth >= _FAR) + (code_lines > _LARGE) + (sites > 1)
    return _NAMES[points]


def changed_functions(mutant: Mutant) -> Iterator[tuple[str, int, int]]:
    """(module, first and last line where the code object may begin) of each changed function, as in the mutant."""
    tree = Source(mutant.data, mutant.path).tree
    wanted = {name for name, _ in mutant.sites if name}
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, name = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{name}.{node.name}" if name else node.name
            if name in wanted and not isinstance(node, ast.ClassDef):
                # With decorators the code object begins at the first of them.
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                yield (mutant.path, first, node.lineno)
        waiting += [(child, name) for child in ast.iter_child_nodes(node)]
