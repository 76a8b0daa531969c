"""`swe`: RTMC's signatures for software engineering (arXiv 2604.11037, section 4), for any agent's tool calls.

Action key: `category:scope@target[:result]`, for instance `view:partial[1-2]@core.py`, `modify:replace:a3f2@core.py`,
`modify:replace:a3f2@core.py:error` (refused), `test@tests/test_core.py:ok`, `think`. State key:
`core.py:M:a3f2,V[1-2]|(test_fail_count=0,test_pass_count=1,think_count=0)` (rtmc/signatures/worktree.py).

Chosen where the paper's page is silent
- A step of several effects has the class that comes first in `effects.PRECEDENCE`; the state folds all of them.
- A refused edit, a view of a file that is not there and a command that failed to write leave the state alone; what a
  failure before it held back (`pytest && sed -i ...`) is no effect at all (rtmc/signatures/outcomes.py).
- A run of which nothing tells how it ended has no result and is not counted. One that the environment stopped failed;
  what it did not run at all is an error in the action key alone (rtmc/signatures/refusals.py).
- An insertion is an edit that is known to replace no text; where what was replaced is not known, it is a replacement.
- A change is hashed in a normal form (rtmc/signatures/changes.py), so that editors that take line ranges, old text or
  sed programmes meet on the same text: MD5(old + new), the first `hash_chars` digits.
- A changed copy of a file (`sed ... a.py > b.py`) is created; what a command found or did, written into a file, is what
  it found or did, and so is what goes to /tmp. A runner that is asked (`--collect-only`, `--version`) runs no test.
- A patch whose text nothing tells changes something of the repository (`.`), by the patch's name.
- A file created with its text has `C` and `I:hhhh`, as one that is created empty and then filled.
- Deleting a file replaces its changes by `D`; `git checkout FILE` takes changes back that are not staged,
  `git reset --hard` and `git stash` those that are not committed, `undo_edit` the last one.
- The repository's root is the one thing for which a whole rollout is looked at (rtmc/signatures/roots.py): it is where
  the agent was put, whatever it shows of it first.
- Executing and installing are actions but enter the state only if `state_classes` says so.

What this is not: no command is run, no repository is looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rtmc.errors import SignatureError
from rtmc.signatures import answers
from rtmc.signatures.effects import CLASSES
from rtmc.signatures.paths import Place
from rtmc.signatures.roots import Evidence
from rtmc.signatures.scene import NO_FILE, CallReading, Done, Reading, Scene

if TYPE_CHECKING:
    from rtmc.rollouts import Rollout, Step

STATE_CLASSES = ("view", "search", "modify", "create", "fileop", "test", "think")
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


class SweState(Scene):
    """The files, the folder, the open file and the counts of a rollout, step by step."""

    def __init__(self, signature: SweSignature, steps: list[Step], prompt: str = "") -> None:
        super().__init__(signature, Place(prompt, Evidence(steps)))
        self._signature = signature
        self._steps = steps  # held, so that no other step gets the id of one of them
        self._actions: dict[int, str] = {}
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
            self._last = (step, self.reading(step))
        return self._last[1]

    def update(self, step: Step) -> None:
        """Fold the step's effects, all that succeeded."""
        reading = self.read(step)
        self._last = None
        self._actions[id(step)] = reading.main.key()
        for call in reading.calls:
            self._place_cursors(call)
            for done in call.done:
                if done.void:
                    continue
                if done.effect.category in self._signature.state_classes:
                    self._fold(done)
                self._tracked(done, call)
                self._remember(done, call)
            if call.understood.folder:
                self._place.enter(call.understood.folder)
            folder = answers.folder(call.text)
            if folder is not None:
                self._place.told(folder)
            elif answers.fresh_shell(call.text):
                self._place.leave()

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
        elif scope == "revert" and done.ok:
            tree.reverted(done.name, done.effect.term)
        elif scope == "unrevert":
            tree.restored()

    def _tracked(self, done: Done, call: CallReading) -> None:
        """What git holds of the files, to which they can be taken back."""
        scope = done.effect.scope
        if done.ok is False or not done.effect.shell:
            return
        if scope in ("git-add", "unstage"):
            self._tree.staged(done.name, back=scope == "unstage")
        elif scope == "git-commit" and "nothing to commit" not in call.text and "no changes added" not in call.text:
            self._tree.committed(done.effect.term == "-a")

    def _target(self, done: Done) -> str:
        target = self._place.name(done.effect.target)
        into = done.effect.target.endswith("/") or target == "." or "." not in target.rpartition("/")[2]
        leaf = done.name.rpartition("/")[2]
        if into and "." in leaf:
            return leaf if target == "." else f"{target}/{leaf}"
        return target

    def _place_cursors(self, call: CallReading) -> None:
        """Where a windowed editor's cursors are after a call: where the answer marks them, where the call sets them, or
        around the text that it put in."""
        if not call.understood.window or any(done.ok is False for done in call.done):
            return
        marked = None if call.answer is None else answers.cursors(call.answer)
        if marked is not None:
            self._cursors = marked
            return
        if call.understood.cursors is not None:
            self._cursors = call.understood.cursors
        for done in call.done:
            effect = done.effect
            if effect.category == "modify" and effect.scope in ("range", "cursors"):
                span = effect.lines or self._cursors_in(done.name)
                size = len((effect.new or "").split("\n"))
                self._cursors = None if span is None else (span[0], span[0] + size - 1)
            elif effect.category == "create" or (effect.category == "view" and effect.path):
                self._cursors = None  # another file

    def _remember(self, done: Done, call: CallReading) -> None:
        """The open file, and what files hold, as far as the answer and the action show."""
        effect, answer = done.effect, call.answer
        if call.understood.window:
            if call.shown is not None:
                self._open = self._place.name(call.shown[0])
                self._totals[self._open] = call.shown[1]
            elif effect.scope in ("window", "open") and effect.path and done.ok is not False:
                self._open = done.name
        if done.ok is False or effect.category not in ("view", "modify", "create", "fileop"):
            return
        if effect.category in ("create", "modify"):
            if done.after is None:
                self._contents.forget(done.name)
            else:
                self._contents.put(done.name, done.after.lines, done.after.whole)
            if call.shown is None:
                self._totals.pop(done.name, None)
        if effect.category == "fileop":
            self._changed_place(done)
        elif answer and not effect.shell and effect.category != "create":
            self._contents.show(done.name, answer, whole=effect.category == "view" and effect.scope == "full")
        elif answer and effect.category == "view" and sum(not d.effect.aside for d in call.done) == 1:
            first = (effect.lines or (1, -1))[0]
            plain = effect.scope in ("full", "partial")
            self._contents.show(done.name, answer, first if plain else 0, whole=effect.scope == "full")

    def _changed_place(self, done: Done) -> None:
        """Files that are moved, copied, deleted or taken back."""
        if done.effect.scope in ("move", "copy"):
            self._contents.copy(done.name, self._target(done))
        if done.effect.scope in ("revert", "unrevert", "clean") or done.effect.scope in ("delete", "move"):
            self._contents.forget(done.name)
            self._contents.forget_below(done.name)
