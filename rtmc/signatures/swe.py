"""`swe`: RTMC's signatures for software engineering (arXiv 2604.11037, section 4), for any agent's tool calls.

Action key: `category:scope@target[:result]`, for instance `view:partial[1-2]@core.py`, `modify:replace:a3f2@core.py`,
`modify:replace:a3f2@core.py:error` (refused), `test@tests/test_core.py:ok`, `think`. State key:
`core.py:M:a3f2,V[1-2]|(test_fail_count=0,test_pass_count=1,think_count=0)` (rtmc/signatures/worktree.py).

Chosen where the paper's page is silent
- A step of several effects has the class that comes first in `effects.PRECEDENCE`; the state folds all of them.
- A refused edit, a view of a file that is not there and a command that failed to write leave the state alone.
- A change is hashed in a normal form (rtmc/signatures/changes.py), so that editors that take line ranges, old text or
  sed programmes meet on the same text: MD5(old + new), the first `hash_chars` digits.
- A file created with its text has `C` and `I:hhhh`, as one that is created empty and then filled.
- Deleting a file replaces its changes by `D`; `git checkout FILE` and `undo_edit` take changes back.
- Executing and installing are actions but enter the state only if `state_classes` says so.

What this is not: no command is run, no repository is looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rtmc.errors import SignatureError
from rtmc.signatures import answers
from rtmc.signatures.calls import calls_of
from rtmc.signatures.changes import Contents, change_of, digest
from rtmc.signatures.commands import understood_command
from rtmc.signatures.editors import understood_call
from rtmc.signatures.effects import CLASSES, PRECEDENCE, Effect, Understood
from rtmc.signatures.paths import Place
from rtmc.signatures.worktree import Worktree

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

STATE_CLASSES = ("view", "search", "modify", "create", "fileop", "test", "think")
# The target of an editor's command that acts on the open file, where none is known.
NO_FILE = "-"
# More effects than this a step has only by accident.
_MAX_EFFECTS = 300
# The prompt's beginning names the repository's folder.
_PROMPT = 30_000


class SweSignature:
    """Signatures of coding agents.

    bucket          lines in a view's bucket; line n is in bucket n // bucket
    hash_chars      hexadecimal digits of a change's hash, 0 to 32; 0 = none, so that all changes of a file are equal
    state_classes   action classes that enter the state, of `effects.CLASSES` (default: STATE_CLASSES); `finish` ends an
                    episode and changes no state
    search_terms    a search's action key also says what was searched for

    An action's target depends on the folder, the open file and the root, and its hash on what the file held: the state
    knows them, so `state.action(step)` is what `rtmc.tabulate` asks.

    Raises SignatureError for an option out of its range, ImportError where tree-sitter is missing.
    """

    def __init__(
        self,
        bucket: int = 100,
        hash_chars: int = 4,
        state_classes: Collection[str] = STATE_CLASSES,
        search_terms: bool = False,
    ) -> None:
        if type(bucket) is not int or bucket < 1:
            raise SignatureError(f"swe: `bucket` must be a number of lines, 1 or more; got {bucket!r}")
        if type(hash_chars) is not int or not 0 <= hash_chars <= 32:
            raise SignatureError(f"swe: `hash_chars` must be 0 to 32; got {hash_chars!r}")
        wanted = [state_classes] if isinstance(state_classes, str) else list(state_classes)
        unknown = sorted(set(map(str, wanted)) - set(CLASSES))
        if unknown:
            raise SignatureError(f"swe: `state_classes` has {', '.join(unknown)}; the classes are {', '.join(CLASSES)}")
        if type(search_terms) is not bool:
            raise SignatureError(f"swe: `search_terms` must be true or false; got {search_terms!r}")
        self.bucket = bucket
        self.hash_chars = hash_chars
        self.state_classes = frozenset(wanted)
        self.search_terms = search_terms
        self._states: WeakValueDictionary[int, SweState] = WeakValueDictionary()  # id of a step -> its rollout's state

    def action(self, step: Step) -> str:
        """Key of the step's action: as the state of its rollout reads it where that state has come to the step, else
        by the step alone."""
        state = self._states.get(id(step))
        known = None if state is None else state.known_action(step)
        return SweState(self, []).action(step) if known is None else known

    def state(self, rollout: Rollout) -> SweState:
        """A state before the first step."""
        first = rollout.steps[0].observation if rollout.steps else ""
        state = SweState(self, rollout.steps, f"{rollout.system or ''}\n{first}"[:_PROMPT])
        self._states.update((id(step), state) for step in rollout.steps)
        return state

    def validates(self, action: str) -> bool:
        """Whether an action of this key checks the agent's own work: it runs tests."""
        return action.startswith("test") and action[4:5] in (":", "@")


@dataclass(frozen=True, slots=True)
class Done:
    """An effect bound to its place in a rollout.

    name      its file, relative to the root
    scope     as the action key says it
    ok        True = done, False = failed or refused, None = the answer does not say (or there is none)
    codes     OPS codes that the file gains
    """

    effect: Effect
    name: str
    scope: str = ""
    ok: bool | None = None
    codes: tuple[str, ...] = ()

    def key(self) -> str:
        """`category:scope@target[:result]`."""
        category = self.effect.category
        if category in ("think", "finish"):
            return category
        told = {True: ":ok", False: ":error", None: ""}[self.ok]
        if category not in ("test", "execute", "install") and self.ok is not False:
            told = ""
        return f"{category}{':' if self.scope else ''}{self.scope}@{self.name}{told}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A step as a state reads it: all it did, and the one effect that gives its class."""

    done: tuple[Done, ...]
    main: Done
    understood: tuple[Understood, ...]
    text: str
    shown: tuple[str, int] | None


class SweState:
    """The files, the folder, the open file and the counts of a rollout, step by step."""

    def __init__(self, signature: SweSignature, steps: list[Step], prompt: str = "") -> None:
        self._signature = signature
        self._steps = steps  # held, so that no other step gets the id of one of them
        self._actions: dict[int, str] = {}
        self._place = Place(prompt)
        self._tree = Worktree()
        self._contents = Contents()
        self._totals: dict[str, int] = {}
        self._open: str | None = None
        self._cursors: tuple[int, int] | None = None
        self._last: tuple[Step, Reading] | None = None

    def key(self) -> str:
        """The state key."""
        return self._tree.key()

    def action(self, step: Step) -> str:
        """Key of the action of the step that stands before this state."""
        return self.read(step).main.key()

    def known_action(self, step: Step) -> str | None:
        """The action key of a step that was folded or comes next; None for a later one."""
        told = self._actions.get(id(step))
        if told is None and len(self._actions) < len(self._steps) and self._steps[len(self._actions)] is step:
            told = self.action(step)
        return told

    def read(self, step: Step) -> Reading:
        """What the step does here; the state stays as it is, apart from the root that the step may show."""
        if self._last is None or self._last[0] is not step:
            self._last = (step, self._read(step))
        return self._last[1]

    def update(self, step: Step) -> None:
        """Fold the step's effects, all that succeeded."""
        reading = self.read(step)
        self._last = None
        self._actions[id(step)] = reading.main.key()
        for done in reading.done:
            if done.effect.category in self._signature.state_classes:
                self._fold(done)
            self._remember(done, reading)
        for understood in reading.understood:
            if understood.cursors is not None:
                self._cursors = understood.cursors
            if understood.folder and not answers.reading_failed(reading.text, None, False):
                self._place.enter(understood.folder)
        folder = answers.folder(reading.text)
        if folder is not None:
            self._place.told(folder)
        elif answers.fresh_shell(reading.text):
            self._place.leave()

    def _read(self, step: Step) -> Reading:
        calls = calls_of(step)
        understood = tuple(
            understood_command(c.arguments["command"]) if c.name == "bash" else understood_call(c) for c in calls
        )
        answer = None if step.answer is None else answers.plain(step.answer)
        text = "" if answer is None else answers.ends(answer)
        effects = [effect for part in understood for effect in part.effects][:_MAX_EFFECTS]
        if not effects:
            effects = [Effect("execute", "", "nothing")] if calls else [Effect("think")]
        status = answers.exit_status(text)
        shown = answers.header(text) if any(part.window for part in understood) else None
        done: list[Done] = []
        for place, effect in enumerate(effects):
            last = place == len(effects) - 1
            done.append(self._bound(effect, done, answer, text, status, last, shown))
        candidates = [d for d in done if not d.effect.aside] or done
        main = min(candidates, key=lambda d: PRECEDENCE.index(d.effect.category))
        return Reading(tuple(done), main, understood, text, shown)

    def _bound(
        self,
        effect: Effect,
        before: list[Done],
        answer: str | None,
        text: str,
        status: int | None,
        last: bool,
        shown: tuple[str, int] | None,
    ) -> Done:
        if effect.category in ("think", "finish"):
            return Done(effect, "")
        known = None if answer is None else text
        if effect.category == "view" and known is not None and answers.is_listing(known):
            effect = Effect("search", effect.path)
        name = self._name(effect, shown)
        if effect.category in ("view", "search"):
            ok = None if known is None else not self._unseen(effect, known, status, last)
            return self._viewed(effect, name, answer, shown, ok)
        if effect.category in ("modify", "create"):
            return self._changed(effect, name, before, known, status, last)
        if effect.category == "test":
            return Done(effect, name, ok=None if known is None else answers.run_passed(known, status))
        if effect.category == "fileop":
            failed = known is not None and self._failed(effect, known, status, last)
            return Done(effect, name, effect.scope, ok=not failed)
        ok = None if known is None else answers.ran(known, status)
        code = {"execute": "X:error" if ok is False else "X:ok", "install": "P"}[effect.category]
        return Done(effect, name, effect.scope, ok, (code,))

    def _name(self, effect: Effect, shown: tuple[str, int] | None) -> str:
        if effect.path is None:
            if shown is not None:
                return self._place.name(shown[0])
            return self._open or NO_FILE
        if shown is not None and effect.path:
            self._place.seen(effect.path, shown[0])
        if effect.scope == "cd" or (effect.category == "search" and "." not in effect.path.rpartition("/")[2]):
            self._place.learn(effect.path)
        return self._place.name(effect.path)

    def _unseen(self, effect: Effect, text: str, status: int | None, last: bool) -> bool:
        if effect.shell:
            # A search that finds nothing ends with status 1.
            status = None if effect.category == "search" and status == 1 else status
            return answers.reading_failed(text, status, last)
        return answers.missing(text) and answers.header(text) is None

    def _failed(self, effect: Effect, text: str, status: int | None, last: bool) -> bool:
        return answers.shell_failed(text, status, last) if effect.shell else answers.refused(text)

    def _viewed(
        self, effect: Effect, name: str, answer: str | None, shown: tuple[str, int] | None, ok: bool | None
    ) -> Done:
        if effect.category == "search":
            term = effect.term.strip() if self._signature.search_terms else ""
            scope = "".join(c if c.isprintable() and c != "@" else "_" for c in term[:80])
            return Done(effect, name, scope, ok, ("S",))
        lines, scope = effect.lines, effect.scope
        total = shown[1] if shown else self._totals.get(name)
        if scope == "window" and answer is not None and shown is not None:
            numbers = answers.shown_lines(answer)
            lines = (min(numbers), max(numbers)) if numbers else lines
        if scope not in ("full", "partial", "window"):
            return Done(effect, name, scope, ok)  # a diff, a map, a count: the file's lines are not read
        if lines is None:
            return Done(effect, name, "full", ok, ("Vf",))
        if total is not None and lines[0] < 0:
            lines = (max(1, total + lines[0] + 1), lines[1])
        if total is not None and lines[1] < 0:
            lines = (lines[0], max(lines[0], total + lines[1] + 1))
        if total is not None and 0 <= lines[0] <= 1 and lines[1] >= total:
            return Done(effect, name, "full", ok, ("Vf",))
        label = self._buckets(*lines)
        return Done(effect, name, f"partial{label}", ok, (f"V{label}",))

    def _buckets(self, low: int, high: int) -> str:
        if low < 0:
            return "[end]"
        first = low // self._signature.bucket
        if high < 0:
            return f"[{first}-end]"
        second = max(low, high) // self._signature.bucket
        return f"[{first}]" if first == second else f"[{first}-{second}]"

    def _changed(
        self, effect: Effect, name: str, before: list[Done], known: str | None, status: int | None, last: bool
    ) -> Done:
        ok = known is None or not self._failed(effect, known, status, last)
        made = any(d.name == name and d.effect.category in ("create", "modify") and d.ok for d in before)
        if effect.category == "create" and effect.scope == "touch" and (made or self._tree.exists(name)):
            return Done(effect, name, "touch", ok)
        if effect.category == "create" and effect.scope == "overwrite" and ok and (made or self._tree.exists(name)):
            effect = replace(effect, category="modify")
        if effect.scope == "undo":
            return Done(effect, name, "undo", ok)
        old, new = change_of(effect, {} if made else self._contents.lines(name), self._cursors)
        chars = self._signature.hash_chars
        mark = f":{digest(old, new, chars)}" if chars and (old or new) else ""
        if effect.category == "create":
            filled = (f"I{mark}",) if new else ()
            return Done(effect, name, mark[1:], ok, ("C", *filled))
        inserted = not old and effect.scope not in ("sed", "patch", "overwrite") and effect.scope != "range"
        if effect.scope == "range" and not old:
            inserted = self._blank(effect, name)
        kind, code = ("insert", "I") if inserted else ("replace", "M")
        return Done(effect, name, f"{kind}{mark}", ok, (f"{code}{mark}",))

    def _blank(self, effect: Effect, name: str) -> bool:
        """Whether the lines that are replaced are known to be blank, or are none."""
        low, high = effect.lines or (1, 0)
        lines = self._contents.lines(name)
        return low > high or (high - low < 10_000 and all(n in lines for n in range(low, high + 1)))

    def _fold(self, done: Done) -> None:
        """The effect enters the state."""
        category, scope, tree = done.effect.category, done.effect.scope, self._tree
        if done.name == NO_FILE:
            return
        if category == "think":
            tree.flags["think_count"] += 1
        elif category == "test":
            if done.ok is not None:
                tree.flags["test_pass_count" if done.ok else "test_fail_count"] += 1
        elif category == "execute":
            if done.ok is not None:
                tree.saw(done.name, done.codes[0])
        elif done.ok is False:
            return
        elif category in ("view", "search", "install"):
            for code in done.codes:
                tree.saw(done.name, code)
        elif category in ("modify", "create"):
            if scope == "undo":
                tree.undid(done.name)
            for code in done.codes:
                tree.did(done.name, code)
        elif scope == "delete":
            tree.deleted(done.name)
        elif scope == "move":
            tree.moved(done.name, self._target(done))
        elif scope == "copy":
            tree.did(self._target(done), "C")
        elif scope in ("revert", "unrevert"):
            tree.reverted(done.name) if scope == "revert" else tree.restored()

    def _target(self, done: Done) -> str:
        target = self._place.name(done.effect.target)
        into = done.effect.target.endswith("/") or target == "." or "." not in target.rpartition("/")[2]
        leaf = done.name.rpartition("/")[2]
        if into and "." in leaf:
            return leaf if target == "." else f"{target}/{leaf}"
        return target

    def _remember(self, done: Done, reading: Reading) -> None:
        """The open file, and what files hold, as far as the answer and the action show."""
        effect, text = done.effect, reading.text
        if any(part.window for part in reading.understood):
            if reading.shown is not None:
                self._open = self._place.name(reading.shown[0])
                self._totals[self._open] = reading.shown[1]
            elif effect.scope in ("window", "open") and effect.path and done.ok is not False:
                self._open = done.name
        if done.ok is False or effect.category not in ("view", "modify", "create", "fileop"):
            return
        if effect.category == "create" and effect.new is not None:
            self._contents.write(done.name, effect.new)
        elif effect.category in ("create", "modify"):
            self._contents.forget(done.name)
            self._totals.pop(done.name, None)
        if effect.category == "fileop":
            self._contents.forget(done.name)
        elif text and not effect.shell and effect.category != "create":
            self._contents.show(done.name, text)
        elif text and effect.category == "view" and sum(not d.effect.aside for d in reading.done) == 1:
            first = (effect.lines or (1, -1))[0]
            self._contents.show(done.name, text, first if effect.scope in ("full", "partial") else 0)
