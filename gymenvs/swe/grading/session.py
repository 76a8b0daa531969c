"""The objects of a running pytest session that decide outcomes: hooks, items, test cases, tracers, marks.

Sent into the sandbox beside `guard`; see there for what it may use. `Machinery` watches modules and classes; an object
of the session can have a method put over its class's, and its plugin manager can be given one hook more.
"""

import sys
import threading
import types
import unittest
from operator import is_

from rtmc.gymenvs.swe.grading.origin import RUNNER, TEST, chain, code_of

_MARKS = ("skip", "skipif", "xfail")
# By these a test is run and judged.
_JUDGING = ("pytest_runtest_protocol", "pytest_runtest_call", "pytest_runtest_makereport", "pytest_pyfunc_call")
_LISTS = ("_hookimpls", "_nonwrappers", "_wrappers")  # of a hook, by pluggy's release
_CASE = ("assert", "fail")  # beginnings of names in a test case that judge
_CASE_NAMES = ("run", "debug", "skipTest", "subTest", "failureException", "_callTestMethod", "__call__")


class Watched:
    """Looks at one session. `tell(name, file)` is called with what is not as it should be.

    `plugins`: modules of the tree that the task's configuration names as plugins."""

    def __init__(self, trust, genuine, tell, plugins=()):
        self.trust, self.origin, self.genuine, self.tell = trust, trust.origin, genuine, tell
        self.plugins = frozenset(plugins)
        self._hooks, self._types, self._links = {}, {}, []
        self._needed: frozenset = frozenset()
        self._known: list = []
        self._given, self._functions = {}, {}

    # -- hooks and the session's objects

    def begin(self, config):
        """Takes the hooks that are there before the tree's code runs; those from the tree have to be known code."""
        self._manager = manager = config.pluginmanager
        self._exec, self._call = manager._inner_hookexec, type(manager)._hookexec
        self._relay, self._proxy = manager.hook, config.hook  # the same, or pytest 8 puts one before the other
        self._links = [
            (config, "hook", self._proxy),
            (config, "pluginmanager", manager),
            (manager, "hook", self._relay),
        ]
        callers = [caller for name, caller in vars(self._relay).items() if not name.startswith("_")]
        self._kinds = {*map(type, callers), *(type(hook) for _, hook in self._implementations())}
        for _, hook in self._implementations():
            place = getattr(code_of(hook.function), "co_filename", "")
            if not place.startswith(self.origin.inside):
                self._hooks[id(hook.function)] = hook.function
                code = code_of(hook.function)
                if code is not None:
                    self.origin.own(code, "library")
        self.hooks()

    def _implementations(self):
        for name, caller in list(vars(self._relay).items()):
            if not name.startswith("_") and hasattr(caller, "get_hookimpls"):
                for hook in caller.get_hookimpls():
                    yield name, hook

    def hooks(self):
        """Every function that a hook calls is a library's, the guard's, or of a protected file, and pluggy's own code
        calls it."""
        now = self._everything()
        if len(now) != len(self._known) or not all(map(is_, now, self._known)):
            self._known = now
            self._look()
        if self._manager._inner_hookexec != self._exec:
            self.tell("the call of hooks", self.trust.author(self._manager._inner_hookexec))
        for one in (self._manager, self._relay, self._proxy):
            self.object(one, type(one).__name__)
        for one, name, value in self._links:
            if getattr(one, name, None) is not value:
                self.tell(type(one).__name__ + "." + name, self.trust.author(getattr(one, name, None)))

    def _everything(self):
        """All objects that stand between a hook's name and its functions: a look that finds them the same is quick."""
        found = list(vars(self._proxy).values()) if self._proxy is not self._relay else []
        for caller in vars(self._relay).values():
            found += (caller, type(caller), getattr(caller, "_hookexec", None))
            for name in _LISTS:
                hooks = getattr(caller, name, None)
                found.append(type(hooks))
                if type(hooks) is list:
                    for hook in hooks:
                        found += (hook, type(hook), hook.function)
        return found

    def _look(self):
        self._callers()
        judging = set()
        for name, hook in self._implementations():
            function = hook.function
            if name in _JUDGING:
                judging.add((name, id(function)))
            if self._hooks.get(id(function)) is function and type(hook) in self._kinds:
                continue
            foreign, code = self.trust.culprit(function), code_of(function)
            # A library's function can be made a hook that it was not written for.
            meant = code is not None and (code.co_name.startswith("pytest_") or self.origin.whose(code) == TEST)
            if foreign is None and meant and type(hook) in self._kinds:
                continue
            plugin = getattr(hook.plugin, "__name__", "")
            if isinstance(hook.plugin, types.ModuleType) and plugin in self.plugins:
                continue  # the task's own configuration makes a plugin of the code under test
            self.tell("the hook " + name + " of " + str(hook.plugin_name)[:200], foreign or "")
        for name, _ in self._needed - judging:
            self.tell("the hook " + name, "")

    def _callers(self):
        """What stands for each hook is pluggy's, and calls by the manager."""
        known = vars(self._relay)
        for name, value in list(vars(self._proxy).items()) if self._proxy is not self._relay else ():
            if value is self._relay or (name in known and value is known[name]):
                continue
            code, foreign = code_of(value), self.trust.culprit(value)
            if foreign is not None or code is None or self.origin.whose(code) != RUNNER:
                self.tell("the hook " + name, foreign or "")
        for name, caller in list(vars(self._relay).items()):
            if name.startswith("_"):
                continue
            call = getattr(caller, "_hookexec", None)
            if type(caller) not in self._kinds:
                self.tell("the hook " + name, self.trust.author(caller))
            elif not isinstance(call, types.MethodType) or call.__func__ is not self._call:
                self.tell("the call of " + name, self.trust.author(call))
            elif call.__self__ is not self._manager or not all(
                type(getattr(caller, one, [])) is list for one in _LISTS
            ):
                self.tell("the call of " + name, "")

    def object(self, one, label):
        """No method of its class, and no attribute of the object's own over one, is or stands on foreign code."""
        kind = type(one)
        if self._types.get(kind) is None:
            self._types[kind] = methods = set()
            for base in kind.__mro__:
                for name, value in list(vars(base).items()):
                    code = code_of(value)
                    if code is not None and not isinstance(value, property):
                        methods.add(name)
                    if code is not None and self.origin.whose(code) == RUNNER:
                        continue  # `Machinery` looks at those
                    plain = code is not None or isinstance(value, type)
                    for part in (value, *(() if plain else getattr(value, "__dict__", {}).values())):
                        foreign = self.trust.culprit(part)
                        if foreign is not None:
                            self.tell(label + "'s " + base.__name__ + "." + name, foreign)
                            break
        own, methods = vars(one), self._types[kind]
        for name in [name for name in own if name in methods]:
            foreign = self.trust.culprit(own[name])
            if foreign is not None:
                self.tell(label + "." + name, foreign)

    def tracers(self):
        """Nobody's function is called with every step of a test."""
        found = [sys.gettrace(), sys.getprofile()]
        found += [getattr(threading, name, None) for name in ("_trace_hook", "_profile_hook")]
        for one in found:
            foreign = self.trust.culprit(one) if one is not None else None
            if foreign is not None:
                self.tell("the tracing of code", foreign)

    # -- tests

    def collected(self, session):
        self._session = session
        self._links.append((session, "config", self._links[0][0]))
        found = [(name, hook.function) for name, hook in self._implementations() if name in _JUDGING]
        runner = [one for one in found if self.origin.whose(code_of(one[1])) == RUNNER]
        self._needed, self._known = frozenset((name, id(function)) for name, function in runner), []
        for item in session.items:
            self._functions[item] = self._now(item)
            function = getattr(item, "obj", None)
            if hasattr(item, "function") or isinstance(item, _case_item()):
                wrong = self.genuine.foreign(function, str(item.fspath))
                if wrong:
                    self.tell("the function of " + item.nodeid, wrong if "/" in wrong or "<" in wrong else "")
            self.item(item)

    @staticmethod
    def _now(item):
        return [(one, one.__code__) for one in chain(getattr(item, "obj", None))]

    def item(self, item):
        """The item and the class of its tests, before and after it runs."""
        for one, label in ((item, "item"), (self._session, "session"), (self._session.config, "config")):
            self.object(one, label)
        if item.session is not self._session or item.config is not self._session.config:
            self.tell("the session of " + item.nodeid, "")
        kind = getattr(item, "cls", None)
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase):
            for base in kind.__mro__:
                if base is not unittest.TestCase and base is not object:
                    self._judging(vars(base), base.__name__)

    def _judging(self, names, label):
        for name, value in list(names.items()):
            judges = name.startswith(_CASE) or name in _CASE_NAMES
            foreign = self.trust.culprit(value) if judges else None
            if foreign is not None:
                self.tell(label + "." + name, foreign)

    def begins(self, item):
        self.item(item)
        self.tracers()
        known, now = self._functions.get(item), self._now(item)
        if known is not None and ([*map(id, sum(known, ()))] != [*map(id, sum(now, ()))]):
            file = next((self.origin.file(code) for _, code in now if not self.origin.whose(code)), "")
            self.tell("the code of " + item.nodeid, file)

    def ends(self, item):
        """After a test's call: what it left in its own test case."""
        case = getattr(item, "_testcase", None) or getattr(item, "_instance", None) or getattr(item, "instance", None)
        if isinstance(case, unittest.TestCase):
            self._judging(vars(case), type(case).__name__)
        function = (chain(getattr(item, "obj", None)) or [None])[-1]
        if function is not None:
            wrong = self.genuine.foreign(function, str(item.fspath))
            if wrong:
                self.tell("the function of " + item.nodeid, wrong if "/" in wrong or "<" in wrong else "")

    # -- marks

    @staticmethod
    def marks(items):
        """The marks by which each item may be skipped or expected to fail."""
        return {item: [mark for mark in item.iter_markers() if mark.name in _MARKS] for item in items}

    def given(self, items, before):
        """Notes which marks hooks gave while tests were chosen: what a conftest does there is the task's own."""
        for item, now in self.marks(items).items():
            known = set(map(id, before.get(item, ())))
            self._given[item] = [mark.name for mark in now if id(mark) not in known]

    def is_given(self, item, kind):
        return any(name.startswith(kind) for name in self._given.get(item, ()))


def _case_item():
    from _pytest.unittest import TestCaseFunction

    return TestCaseFunction


def stranger(origin, excinfo):
    """(file, sure) of what raised: the first file on the way from the test whose code nobody vouches for, else the
    innermost one, the runner's aside. `sure`: there was no such file."""
    error, step = getattr(excinfo, "value", None), getattr(excinfo, "tb", None)
    for _ in range(8):  # pytest raises its own skip while it handles unittest's
        place = ""
        while step is not None:
            code = step.tb_frame.f_code
            whose = origin.whose(code)
            if not whose:
                return origin.file(code), False
            if whose != "runner":
                place = code.co_filename
            step = step.tb_next
        if place or error is None:
            return place, True
        error = error.__context__
        step = getattr(error, "__traceback__", None)
    return "", True
