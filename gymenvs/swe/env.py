"""`rtmc/SWE-v0`: fix a bug in a real repository with tools, graded by hidden tests, as a gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gymnasium.error import ResetNeeded

from rtmc.gymenvs.isolation import users
from rtmc.gymenvs.sandbox import Completed, Limits, Sandbox, SandboxError, open_sandbox
from rtmc.gymenvs.swe import keys, prompt
from rtmc.gymenvs.swe.actions import SYNTAXES, Invalid, read_action
from rtmc.gymenvs.swe.episodes import Listed, Source
from rtmc.gymenvs.swe.errors import TooLarge, TreeError
from rtmc.gymenvs.swe.grading import Verdict, grade, refuse, summarise_tests
from rtmc.gymenvs.swe.oracle import finish_action, gold_actions, shell_action
from rtmc.gymenvs.swe.repository import Prepared, prepare
from rtmc.gymenvs.swe.task import SWETask
from rtmc.gymenvs.swe.tools import EDITORS, Toolbox, ToolLimits, ToolResult
from rtmc.gymenvs.swe.tools.results import clean
from rtmc.gymenvs.swe.tree import TreeSnapshot, WorkTree
from rtmc.gymenvs.textenv import TextEnv, as_task

LAYERS = ("auto", "overlay", "copy")
BACKENDS = ("auto", "bwrap", "unshare", "plain")


class Snapshot(NamedTuple):
    """Everything an episode is made of; `SWEEnv.restore` goes back to it, in this or another environment.

    `tree` holds what differs from the task's starting folder, `tools` the editor's undo history.
    """

    task: SWETask
    tree: TreeSnapshot
    tools: Any
    seen: frozenset[str]
    turn: int
    over: bool
    verdict: Verdict | None


class SWEEnv(TextEnv[SWETask]):
    """A repository with a bug, an issue that tells of it, tools to mend it with, and tests that judge.

    ## Observation
    Text. After a reset the issue, where the repository is, and how to call the tools (`instructions=False`: the issue
    alone); after a step what the tool answers, in the words and with the limits of R2E-Gym's tools, of SWE-agent's
    editor, or of mini-swe-agent: see `rtmc.gymenvs.swe.tools`.

    ## Action
    Text: the agent's whole message, with one call. `actions="r2e"`: `<function=...><parameter=...>` text;
    `actions="tools"`: a JSON tool call; both with an editor (`editor="file_editor"` or `"str_replace_editor"`),
    `search`, `execute_bash` and `finish`. `actions="bash"`: one fenced command, as mini-swe-agent has it. What cannot
    be read is answered with what is wanted, and costs a turn: see `rtmc.gymenvs.swe.actions`.

    Commands run in a sandbox (`rtmc.gymenvs.sandbox`) without network, each in a fresh shell; only files stay.

    ## Reward
    At `finish` 1.0 if the task is resolved, else 0.0: the hidden tests run over a fresh copy of the agent's tree, and
    all that have to pass must pass, see `rtmc.gymenvs.swe.grading`. 0 on every other step. `grade_at_limit=True`
    grades the tree at the turn limit too, as trainers do that submit whatever there is.

    ## Episode end
    `terminated` by `finish`; `truncated` once `max_turns` messages were sent without it, or where grading itself failed
    (a full disk, no sandbox): then `info["error"]` says why and the reward means nothing. Then a reset is needed.

    ## Information
    `task_id`; `state_key`; `action_key` (None after a reset); `valid` (whether the call was read and the tool did as
    asked; a command that fails is valid); `success` (whether the task was graded as resolved); `tool` (`view`,
    `create`, `str_replace`, `insert`, `undo_edit`, `search`, `bash`, `finish` or `invalid`; None after a reset);
    `timed_out`; `changed` (paths that differ from the start; bytes that are no UTF-8 as U+FFFD); `error` (why a call
    was refused, or a command could not be run, or None). Only where there is something to tell: `exit_code`, the one
    that the observation names (of a command; -1 = stopped at a limit; 1 = not allowed and 2 = none given where
    `execute_bash` itself refuses); `tests` (`passed`, `failed`, `errors` of the summary that a test runner printed
    in this step); `verdict`, once the episode was graded (`reason`, `fail_to_pass`, `pass_to_pass`, `suspicions`).

    ## State identity
    `diff:HASH|seen:HASH`: the first of what differs from the start (content, not times; caches left out), the second
    of the set of what was seen: files by blocks of 100 lines, and each command and search with the tree it ran on. The
    order and the turn leave no trace, nor does a call that was refused. `rtmc.signatures` has RTMC's own, coarser
    signature for SWE agents.

    ## Tasks
    `task` (an id, an `SWETask` or its JSON object) fixes the task. Else it is one of the split's, or of `tasks`: a file
    or folder of SWE-bench, SWE-Gym, SWE-smith, SWE-rebench or R2E-Gym records or of our own (`rtmc make-swe-tasks`), or
    `SWETask` objects; see `rtmc.gymenvs.swe.formats`. Split `ready` ships with its files and needs nothing; `real` has
    bugs of real packages, whose releases are fetched from the package registry. Tasks that name a container image need
    `repos`: clones, bundles or prepared folders. A task's starting folder is made once and kept in a cache.
    Which tasks of a file can be graded on this machine, `rtmc check-swe-tasks` tells (`rtmc.gymenvs.swe.soundness`).
    `reset(seed=s)` draws the task with that seed and thus fixes the episode; a later `reset()` draws the next from the
    same generator; an environment never seeded goes through the tasks in order.
    `reset(options={"task": ...})` plays that task once, and leaves the order as it was.

    ## Source
    Jain et al., R2E-Gym, 2025 (arXiv:2504.07164); Yang et al., SWE-agent, NeurIPS 2024 (arXiv:2405.15793); Jimenez et
    al., SWE-bench, ICLR 2024 (arXiv:2310.06770) for the rule of grading.

    Args:
        task: fixed task, see Tasks.
        split: `ready` or `real`; None = `ready`. Not with `tasks`.
        max_turns: messages after which an episode is truncated.
        tasks, repos: see Tasks.
        actions: `r2e`, `tools` or `bash`.
        editor: `file_editor` or `str_replace_editor`; not used with `actions="bash"`.
        instructions: whether the first observation explains the task.
        command_s: seconds that one command may run.
        limits: of a command; None = the sandbox's defaults. `command_s` goes before its `wall_s`.
        grade_at_limit: see Reward.
        backend, trusted: the sandbox, see `open_sandbox`. With `trusted=True` and no isolation play only agents you
            trust.
        layer: how the tree is copied: `overlay`, `copy`, or `auto`.

    Raises:
        ValueError: an argument is none of those named; the message says which would be.
        SandboxError: at a reset: no sandbox works here.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("rtmc.gymenvs:rtmc/SWE-v0")
        >>> text, info = env.reset()
        >>> for message in env.unwrapped.expert_plan():
        ...     text, reward, terminated, truncated, info = env.step(message)
        >>> reward, terminated, info["success"]
        (1.0, True, True)
        >>> env.close()
    """

    world = "SWE"
    LINE_HELP = (
        "Type shell commands (a here-document may follow on more lines), or whole messages in the form above; `submit` "
        "ends the task and grades it."
    )

    def __init__(
        self,
        task: str | SWETask | Mapping[str, Any] | None = None,
        split: str | None = None,
        max_turns: int = 50,
        tasks: str | os.PathLike[str] | Iterable[SWETask] | None = None,
        repos: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        actions: str = "r2e",
        editor: str = "file_editor",
        instructions: bool = True,
        command_s: float = 120.0,
        limits: Limits | None = None,
        grade_at_limit: bool = False,
        backend: str = "auto",
        trusted: bool = False,
        layer: str = "auto",
    ) -> None:
        self.max_turns = self._whole("max_turns", max_turns, 1)
        self.syntax = self._choice("actions", actions, SYNTAXES)
        self.editor = self._choice("editor", editor, EDITORS)
        self.layer = self._choice("layer", layer, LAYERS)
        self.backend = self._choice("backend", backend, BACKENDS)
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"SWE: limits must be a Limits, got {type(limits).__name__}")
        self.limits = replace(limits or Limits(), wall_s=command_s)
        self.tool_limits = ToolLimits(command_s=command_s)
        self.instructions = self._flag("instructions", instructions)
        self.grade_at_limit = self._flag("grade_at_limit", grade_at_limit)
        self.trusted = self._flag("trusted", trusted)
        self.repos = repos
        self.source: Source = Listed(tasks, split)
        super().__init__(task)
        self._prepared: Prepared | None = None
        self._tree: WorkTree | None = None
        self._sandbox: Sandbox | None = None
        self._playing: SWETask | None = None
        self._verdict: Verdict | None = None
        self._over = False

    # -- gymnasium -----------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; which task it has is told under Tasks.

        Raises:
            ValueError: an option is not `task`, its value names no task, or the task cannot be prepared (a setup that
                fails or runs past its limit, a repository that is not there).
            SandboxError: no sandbox works here.
        """
        task = self._begin(seed, options)
        self._enter(task)
        self._go_to(Snapshot(task, self._start, self._blank, frozenset(), 0, False, None))
        text = prompt.opening(task, self.syntax, self.editor, self.max_turns, self.inside)
        return text if self.instructions else task.problem_statement, self._info(None, None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Read one message of the agent, carry out its call, and grade the tree if it was the last.

        Raises:
            TypeError: the action is no text.
            gymnasium.error.ResetNeeded: no episode was started, or it is over.
        """
        toolbox = self._toolbox_now()
        if self._over:
            raise ResetNeeded("SWE: the episode is over; call reset() (or restore()) first")
        if not isinstance(action, str):
            raise TypeError(f"SWE: an action is text, got {type(action).__name__}: {action!r}")
        before = self._diff
        self._completed: Completed | None = None
        call = read_action(action, self.syntax)
        key = keys.key_of(call, self.tree)
        try:
            result = toolbox.answer(action) if isinstance(call, Invalid) else toolbox.call(call)
        except (SandboxError, OSError) as failure:  # the machine's fault, not the agent's: a fact of this episode
            reason = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
            result = ToolResult(prompt.COULD_NOT_RUN, "bash", error=reason)
        self._turn += 1
        trouble = None
        ran = result.error is None if result.kind == "search" else self._completed is not None
        if ran and result.kind in ("search", "bash"):  # what was refused showed nothing
            self._seen |= {f"{result.kind}:{key.digest}@{before}"}
        self._seen |= set(keys.sights(result))
        if result.kind not in ("view", "search", "invalid", "finish"):
            trouble = self._look()
        limit = self._turn >= self.max_turns
        failed = None
        if result.finished or (limit and self.grade_at_limit):
            failed = self._judge()
        self._over = result.finished or limit
        reward = 1.0 if self._verdict is not None and self._verdict.resolved else 0.0
        terminated = result.finished and failed is None
        info = self._info(keys.action_key(call, key, result), result, failed or trouble)
        return result.text, reward, terminated, self._over and not terminated, info

    def close(self) -> None:
        """Removes the tree and ends the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
        if self._tree is not None:
            self._tree.close()
        self._sandbox = self._tree = self._playing = None
        super().close()

    # -- forks and help ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The episode as it is now: what differs from the task's start, the tools' state, what was seen. Picklable."""
        toolbox, task = self._toolbox_now(), self._playing
        assert task is not None
        saved = self.tree.snapshot()
        return Snapshot(task, saved, toolbox.snapshot(), frozenset(self._seen), self._turn, self._over, self._verdict)

    def restore(self, snapshot: Snapshot) -> dict[str, Any]:
        """Go on from a snapshot, here or in another environment with the same tools.

        No reset is needed before; but `gymnasium.make` wraps an environment so that its `step` raises ResetNeeded until
        it was reset once: step the `unwrapped` one, or reset a new one once before the first `unwrapped.restore`.

        Returns:
            The info of the restored state, with `action_key` None and `valid` True, as after a reset.

        Raises:
            TypeError: it is no snapshot of a SWE episode. ValueError: its task cannot be prepared here.
        """
        if not isinstance(snapshot, Snapshot) or not isinstance(snapshot.tree, TreeSnapshot):
            raise TypeError(f"SWE: restore wants what snapshot() gave, got {type(snapshot).__name__}")
        self._enter(snapshot.task)
        self._go_to(snapshot)
        return self._info(None, None)

    def expert_plan(self) -> list[str] | None:
        """Messages that make the files of the gold patch as it has them, then finish. None once the episode is over,
        and where the task has no gold patch or too few turns are left."""
        self._toolbox_now()
        prepared = self._prepared_task
        if self._over or not prepared.task.patch:
            return None
        assert self._tree is not None
        plan = gold_actions(prepared, self._tree, self.syntax, self.editor)
        return plan if len(plan) <= self.max_turns - self._turn else None

    def read_line(self, line: str) -> str:
        """A person's line as a message: `submit`, a message that begins like one, or else a shell command."""
        if line.strip() == "submit":
            return finish_action(self.syntax)
        if line.lstrip().startswith(("<function", "<tool_call>", "{", "```")):
            return line
        try:
            return shell_action(line, self.syntax)
        except ValueError:
            return line

    @property
    def tree(self) -> WorkTree:
        """The agent's tree, as its tools see it."""
        self._toolbox_now()
        assert self._tree is not None
        return self._tree

    @property
    def inside(self) -> str:
        """Where the agent sees the tree."""
        return self.tree.inside

    # -- inside --------------------------------------------------------------------------------------------

    def _as_task(self, task: Any) -> SWETask:
        return as_task(self.world, task, self.source, SWETask)

    @property
    def _prepared_task(self) -> Prepared:
        assert self._prepared is not None
        return self._prepared

    def _toolbox_now(self) -> Toolbox:
        if self._playing is None:
            raise ResetNeeded("SWE: call reset() (or restore()) first")
        return self._toolbox

    def _enter(self, task: SWETask) -> None:
        """Have the tree, the sandbox and the tools of a task; they are kept while the same task is played."""
        if self._playing is not None and (self._playing is task or self._playing == task):
            return
        self.close()
        prepared = prepare(task, repos=self.repos, backend=self.backend, trusted=self.trusted)
        tree = WorkTree(
            prepared.base,
            layer=self.layer,
            owner=users.owner(),
            size_bytes=self.limits.tree_bytes,
        )
        try:
            sandbox = open_sandbox(
                tree.root,
                backend=self.backend,
                trusted=self.trusted,
                limits=self.limits,
                **prepared.runtime.options(),
            )
        except BaseException:
            tree.close()
            raise
        self._prepared, self._tree, self._sandbox, self._playing = prepared, tree, sandbox, task
        self._toolbox = Toolbox(tree, self._run, self.syntax, self.editor, self.tool_limits)
        self._start, self._blank = tree.snapshot(), self._toolbox.snapshot()

    def _go_to(self, snapshot: Snapshot) -> None:
        assert self._tree is not None
        self._tree.restore(snapshot.tree)
        self._toolbox.restore(snapshot.tools)
        self._seen = set(snapshot.seen)
        self._turn, self._over, self._verdict = snapshot.turn, snapshot.over, snapshot.verdict
        self._look()

    def _run(self, command: str, **options: Any) -> Completed:
        assert self._sandbox is not None
        self._completed = self._sandbox.run(command, **options)
        return self._completed

    def _look(self) -> str | None:
        """What follows from the tree: which files differ, and the hash of it. Why that cannot be told, or None: then
        no file is named, and all trees that fail in this way have one key."""
        assert self._tree is not None
        try:
            self._changed = [change.path for change in self._tree.changes()]
            self._diff = self._tree.fingerprint() if self._changed else ""
        except (TreeError, OSError) as failure:
            self._changed, self._diff = [], keys.short_hash(f"no diff: {type(failure).__name__}")
            return " ".join(f"the tree cannot be compared: {failure}".split())[:500]
        return None

    def _judge(self) -> str | None:
        """Grade the tree; why that could not be done, or None."""
        prepared = self._prepared_task
        assert self._tree is not None
        try:
            self._verdict = grade(
                prepared.task,
                prepared.base,
                self._tree.snapshot(),
                runtime=prepared.runtime,
                backend=self.backend,
                trusted=self.trusted,
            )
        except TooLarge as error:  # what the agent made of the tree is a grade
            self._verdict = refuse(prepared.task, error)
        except (SandboxError, TreeError, OSError) as failure:
            return " ".join(f"grading failed: {type(failure).__name__}: {failure}".split())[:500]
        return None

    def _info(self, action_key: str | None, result: ToolResult | None, failed: str | None = None) -> dict[str, Any]:
        assert self._playing is not None
        seen = "\x00".join(sorted(self._seen))
        info: dict[str, Any] = {
            "task_id": self._playing.task_id,
            "state_key": f"diff:{self._diff[:16] or '-'}|seen:{keys.short_hash(seen) if seen else '-'}",
            "action_key": action_key,
            "valid": result is None or result.error is None,
            "success": self._verdict is not None and self._verdict.resolved,
            "tool": None if result is None else result.kind,
            "timed_out": result is not None and result.timed_out,
            "changed": [clean(path) for path in self._changed],
            "error": failed or (None if result is None else result.error),
        }
        # Left out rather than None: vector environments make one array of a key, of numbers or of dictionaries.
        if result is not None and result.exit_code is not None:
            info["exit_code"] = result.exit_code
        if result is not None and result.kind == "bash" and self._completed is not None:
            tests = summarise_tests(f"{self._completed.stdout}\n{self._completed.stderr}")
            if tests is not None:
                info["tests"] = {"passed": tests.passed, "failed": tests.failed, "errors": tests.errors}
        if self._verdict is not None:
            info["verdict"] = {
                "reason": self._verdict.reason,
                "fail_to_pass": dict(self._verdict.fail_to_pass),
                "pass_to_pass": dict(self._verdict.pass_to_pass),
                "suspicions": list(self._verdict.suspicions),
            }
        return info
