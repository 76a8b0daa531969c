"""What a rollout of a coding agent has shown so far, and what a step does there: effects bound to files and results.

What this is not: nothing is folded here; `rtmc.signatures.swe` folds what was bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from rtmc.signatures import answers, refusals
from rtmc.signatures.calls import Call, calls_of
from rtmc.signatures.changes import Known, change_of, digest
from rtmc.signatures.commands import understood_command
from rtmc.signatures.contents import Contents
from rtmc.signatures.editors import understood_call
from rtmc.signatures.edits import patch_effects, reversed_effects
from rtmc.signatures.effects import PRECEDENCE, Effect, Understood
from rtmc.signatures.outcomes import Outcome, outcomes
from rtmc.signatures.paths import Place
from rtmc.signatures.tools import UNREAD
from rtmc.signatures.worktree import Worktree

if TYPE_CHECKING:
    from rtmc.rollouts import Step

# The target of an editor's command that acts on the open file, where none is known.
NO_FILE = "-"
# More effects than this a step has only by accident.
_MAX_EFFECTS = 300
# The status of a search that finds nothing, of a comparison that finds a difference, and what xargs makes of it.
_FINDINGS = (1, 123)
_NOTHING = Effect("execute", "", "nothing")


class Options(Protocol):
    """What a signature chooses; see `rtmc.signatures.swe.SweSignature`."""

    bucket: int
    hash_chars: int
    search_terms: bool


@dataclass(frozen=True, slots=True)
class Done:
    """An effect bound to its place in a rollout.

    name      its file, relative to the root
    scope     as the action key says it
    ok        True = done, False = failed or refused, None = the answer does not say (or there is none)
    codes     OPS codes that the file gains
    void      the environment did not run the action: whatever it says, nothing happened
    after     what is known of the file that was changed
    """

    effect: Effect
    name: str
    scope: str = ""
    ok: bool | None = None
    codes: tuple[str, ...] = ()
    void: bool = False
    after: Known | None = None

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
class CallReading:
    """One tool call and what answered it.

    answer   the whole answer, None = there is none
    text     the part of it that is read, "" = none
    shown    (file, number of lines) of a windowed editor's answer
    """

    understood: Understood
    done: tuple[Done, ...]
    answer: str | None = None
    text: str = ""
    shown: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A step: its calls, and the one effect that gives its class."""

    calls: tuple[CallReading, ...]
    main: Done

    @property
    def done(self) -> Iterator[Done]:
        """All that the step did."""
        return (done for call in self.calls for done in call.done)


@dataclass(slots=True)
class _Reply:
    """What answered a call.

    known     the part of the answer that is read; None = there is none
    status    the exit status that it tells
    refused   the log says that the call failed
    outcomes  of the units of a command line
    """

    answer: str | None
    known: str | None
    status: int | None
    refused: bool
    shown: tuple[str, int] | None
    outcomes: list[Outcome]


class Scene:
    """The folder, the open file and the contents of files that a rollout has shown."""

    def __init__(self, options: Options, place: Place) -> None:
        self._options = options
        self._place = place
        self._tree = Worktree()
        self._contents = Contents()
        self._totals: dict[str, int] = {}
        self._open: str | None = None
        self._cursors: tuple[int, int] | None = None

    def reading(self, step: Step) -> Reading:
        """What the step does here; nothing changes, apart from the root that the step may show."""
        calls = calls_of(step)
        found: list[CallReading] = []
        earlier: list[Done] = []
        for place, call in enumerate(calls):
            found.append(self._called(call, *_answer(step, place, len(calls)), earlier))
            earlier += found[-1].done
        if not calls:
            text = None if step.answer is None else answers.plain(step.answer)
            shown = Done(Effect("think"), "")
            found.append(CallReading(Understood(()), (shown,), text, "" if text is None else answers.ends(text)))
        done = [d for call in found for d in call.done]
        candidates = [d for d in done if not d.effect.aside] or done
        return Reading(tuple(found), min(candidates, key=_strength))

    def _called(self, call: Call, answer: str | None, refused: bool, earlier: list[Done]) -> CallReading:
        answer = None if answer is None else answers.plain(answer)
        known = None if answer is None else answers.ends(answer)
        status = None if known is None else answers.exit_status(known)
        void = known is not None and refusals.not_run(known)
        if call.name == "bash":
            command = call.arguments["command"]
            status = 1 if refused and status is None else status
            understood = understood_command(command)
            told = outcomes(understood, known, status)
            stayed = [
                k for k, unit in enumerate(understood.units) if unit.folder and (not told[k].ran or told[k].ok is False)
            ]
            if stayed:
                understood = understood_command(command, frozenset(stayed))
                told = outcomes(understood, known, status)
        else:
            understood, told = understood_call(call), []
        refused = refused or void or (known is not None and refusals.stopped(known))
        shown = answers.header(known) if known is not None and understood.window else None
        reply = _Reply(answer, known, status, refused, shown, told)
        effects = [e for e in understood.effects[:_MAX_EFFECTS] if e.unit < 0 or told[e.unit].ran]
        done: list[Done] = []
        # One after the other: a patch may have been written by the effect before.
        parts = (part for e in effects or [_NOTHING] for part in self._patched(e, known, [*earlier, *done]))
        for effect in islice(parts, _MAX_EFFECTS):
            bound = self._bound(effect, [*earlier, *done], reply)
            done.append(replace(bound, void=True) if void else bound)
        return CallReading(understood, tuple(done), answer, known or "", shown)

    def _patched(self, effect: Effect, known: str | None, before: list[Done]) -> list[Effect]:
        """An edit by a patch file as edits of the files that it patches: by its text, where the rollout wrote or showed
        it, else by the answer."""
        if effect.scope != "patch" or not effect.shell or (effect.new is not None and not effect.target):
            return [effect]
        held = self._known(effect, self._place.name(effect.target), before) if effect.target else Known({})
        found = patch_effects("\n".join(held.lines[n] for n in sorted(held.lines))) if held.whole else []
        if effect.term:
            found = reversed_effects(found)
        if not found and known is not None:
            files = answers.patched_files(known)[0]
            found = [Effect("modify", path, "patch", new=effect.term or None) for path in files]
        return [replace(e, shell=True, unit=effect.unit) for e in found] or [effect]

    def _bound(self, effect: Effect, before: list[Done], reply: _Reply) -> Done:
        known = reply.known
        if effect.category in ("think", "finish"):
            return Done(effect, "")
        if effect.category == "view" and known is not None and answers.is_listing(known):
            effect = replace(effect, category="search", scope="", lines=None)
        name = self._name(effect, reply.shown)
        if effect.category in ("view", "search"):
            return self._viewed(effect, name, reply, None if known is None else not _unseen(effect, reply))
        if effect.category in ("modify", "create"):
            return self._changed(effect, name, before, not _failed(effect, reply))
        if effect.category == "test":
            return Done(effect, name, ok=_ended(effect, reply))
        if effect.category == "fileop":
            ok: bool | None = not _failed(effect, reply)
            if ok and effect.scope == "revert" and known is not None and "No local changes to save" in known:
                ok = None  # there was nothing to take back
            return Done(effect, name, effect.scope, ok)
        ok = _ended(effect, reply)
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

    def _viewed(self, effect: Effect, name: str, reply: _Reply, ok: bool | None) -> Done:
        shown = reply.shown
        if effect.category == "search":
            term = effect.term.strip() if self._options.search_terms else ""
            scope = "".join(c if c.isprintable() and c != "@" else "_" for c in term[:80])
            return Done(effect, name, scope, ok, ("S",))
        lines, scope = effect.lines, effect.scope
        total = shown[1] if shown else self._totals.get(name)
        if reply.answer is not None and (scope == "some" or (scope == "window" and shown is not None)):
            numbers = answers.shown_lines(reply.answer)
            lines = (min(numbers), max(numbers)) if numbers else lines
        if scope == "some" and lines is None:
            return Done(effect, name, "partial", ok, ("V",))
        if scope not in ("full", "partial", "window", "some"):
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
        first = low // self._options.bucket
        if high < 0:
            return f"[{first}-end]"
        second = max(low, high) // self._options.bucket
        return f"[{first}]" if first == second else f"[{first}-{second}]"

    def _changed(self, effect: Effect, name: str, before: list[Done], ok: bool) -> Done:
        made = any(d.name == name and d.effect.category in ("create", "modify") and d.ok for d in before)
        if effect.category == "create" and effect.scope == "touch" and (made or self._tree.exists(name)):
            return Done(effect, name, "touch", ok)
        if effect.category == "create" and effect.scope == "overwrite" and ok and (made or self._tree.exists(name)):
            effect = replace(effect, category="modify")
        if effect.scope == "undo":
            return Done(effect, name, "undo", ok)
        change = change_of(effect, self._known(effect, name, before), self._cursors_in(name))
        old, new = change.old, change.new
        chars = self._options.hash_chars
        mark = f":{digest(old or '', new, chars)}" if chars and (old or new) else ""
        if effect.category == "create":
            filled = (f"I{mark}",) if new else ()
            return Done(effect, name, mark[1:], ok, ("C", *filled), after=change.after)
        # An insertion is an edit that is known to replace nothing.
        inserted = old == "" and (new != "" or effect.scope == "insert")
        kind, code = ("insert", "I") if inserted else ("replace", "M")
        return Done(effect, name, f"{kind}{mark}", ok, (f"{code}{mark}",), after=change.after)

    def _known(self, effect: Effect, name: str, before: list[Done]) -> Known:
        """What is known of the file when the effect comes, of which those `before` are not folded yet."""
        for done in reversed(before):
            if done.name == name and done.effect.category in ("create", "modify", "fileop") and done.ok is not False:
                return done.after or Known({})
        window = self._contents.window(name) if effect.scope == "window" else None
        return Known(self._contents.lines(name), self._contents.whole(name), window)

    def _cursors_in(self, name: str) -> tuple[int, int] | None:
        """Where the editor's cursors are; a file of one line leaves no choice."""
        return self._cursors or ((1, 1) if self._totals.get(name) == 1 else None)


def _strength(done: Done) -> tuple[int, bool]:
    """Order of the effects by how much they say of a step: by class, what was done before what failed."""
    return PRECEDENCE.index(done.effect.category), done.ok is False


def _answer(step: Step, place: int, calls: int) -> tuple[str | None, bool]:
    """(answer, whether the log says that the call failed) of one of a step's calls."""
    replies = step.replies if step.tool_calls else None
    if replies is None or len(replies) != calls:
        return step.answer, False
    reply = replies[place]
    return (None, False) if reply is None else (reply.text, reply.failed is True)


def _unseen(effect: Effect, reply: _Reply) -> bool:
    """Whether what was looked for was not there."""
    known = reply.known or ""
    if effect.unit < 0 or not effect.shell:
        return reply.refused or (answers.missing(known) and answers.header(known) is None)
    outcome = reply.outcomes[effect.unit]
    found = outcome.status in _FINDINGS and (effect.category == "search" or effect.scope in ("diff", "cmp", "git-diff"))
    return outcome.failed(effect) and not found


def _failed(effect: Effect, reply: _Reply) -> bool:
    """Whether an edit was refused or failed; without an answer it is taken as done."""
    if reply.known is None:
        return False
    if effect.unit < 0 or not effect.shell:
        return reply.refused or answers.refused(reply.known)
    if effect.scope == "patch" and effect.path in answers.patched_files(reply.known)[1]:
        return True
    return reply.outcomes[effect.unit].failed(effect)


def _ended(effect: Effect, reply: _Reply) -> bool | None:
    """How a run ended; None = nothing tells."""
    if reply.known is None or effect.scope.startswith(UNREAD):
        return None
    if effect.unit < 0:
        if reply.refused:
            return False
        if effect.category == "test":
            return answers.run_passed(reply.known, reply.status)
        return answers.ran(reply.known, reply.status)
    outcome = reply.outcomes[effect.unit]
    if outcome.ok is not None or effect.category == "test":
        return outcome.ok
    if outcome.hidden:
        return None
    # A crash that is another command's is not this one's.
    return answers.ran(reply.known, None) or any(other.ok is False for other in reply.outcomes)
