"""Whose code a function is, told by the code itself: the file name that a code object bears is anybody's to choose.

Sent into the sandbox beside `guard`; see there for what it may use.
"""

import os
import sys
import time
import types

RUNNER, TEST, LIBRARY, BASE = "runner", "test", "library", "base"
_LONGEST_CHAIN = 12  # wrappers around wrappers


class Origin:
    """Knows code objects by identity (the runner's, the protected tests') or by value (what compiling the text of a
    library's file, or of a file that the agent left alone, gives)."""

    def __init__(self, inside, libraries, changed, ignored=()):
        self.ignored = frozenset(ignored)
        self.inside, self.changed = inside + "/", {inside + "/" + path for path in changed}
        self.libraries = tuple(one.rstrip("/") + "/" for one in libraries)
        self.began = time.time()
        self._owned = {}  # id of a code object -> (the object, whose)
        self._compiled = {}  # file -> code objects that its text gives
        self._stat, self._compile = os.stat, compile
        self._normal, self._real = os.path.normpath, os.path.realpath
        self._real_inside = os.path.realpath(inside)
        for name, module in list(sys.modules.items()):
            if getattr(getattr(module, "__spec__", None), "origin", "") == "frozen":
                self.own_all(vars(module), modules=(name, module.__name__))

    def own(self, code, whose):
        """Takes a code object and all that it holds for `whose`."""
        waiting = [code]
        while waiting:
            one = waiting.pop()
            if self._owned.get(id(one)) == (one, whose):
                continue
            self._owned[id(one)] = (one, whose)
            waiting += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]

    def own_all(self, names, whose=RUNNER, modules=()):
        """Takes the functions and the classes' functions among the values of a namespace; `modules`: its names."""
        modules = modules or (names.get("__name__"),)
        for value in list(names.values()):
            if isinstance(value, type) and value.__module__ in modules:
                for inner in map(code_of, vars(value).values()):
                    if inner is not None:
                        self.own(inner, whose)
            code = code_of(value)
            if code is not None:
                self.own(code, whose)

    def whose(self, code):
        """RUNNER, TEST, LIBRARY, BASE (of the tree as the agent got it), or "": nobody's who may be trusted."""
        known = self._owned.get(id(code))
        if known is not None:
            return known[1]
        whose = self._by_text(code)
        self._owned[id(code)] = (code, whose)
        return whose

    def place(self, file):
        """LIBRARY or BASE for a file that nothing of this process can have written, else ""."""
        if file in self.changed or not file.startswith((*self.libraries, self.inside)) or self._normal(file) != file:
            return ""
        if file.startswith(self.inside) and not file.startswith(self.libraries):
            # Nobody says whose the files of folders are that count as no change; a link may lead to a changed file.
            inner = file[len(self.inside) :]
            if not self.ignored.isdisjoint(inner.split("/")) or self._real(file) != self._real_inside + "/" + inner:
                return ""
        try:
            if self._stat(file).st_ctime >= self.began:
                return ""
        except OSError:
            return ""
        return LIBRARY if file.startswith(self.libraries) else BASE

    def _by_text(self, code):
        file = code.co_filename
        whose = self.place(file)
        return whose if whose and code in self._codes(file) else ""

    def _codes(self, file):
        if file not in self._compiled:
            found = self._compiled[file] = set()
            try:
                with open(file, "rb") as text:
                    waiting = [self._compile(text.read(), file, "exec", dont_inherit=True)]
            except (OSError, SyntaxError, ValueError):
                waiting = []
            while waiting:
                one = waiting.pop()
                found.add(one)
                waiting += [inner for inner in one.co_consts if isinstance(inner, types.CodeType)]
        return self._compiled[file]

    def file(self, code):
        """The file of a code object where that is sure; else its name in angle brackets, which is no path."""
        name = code.co_filename
        return name if name in self.changed or self.whose(code) else "<" + name.strip("<>") + ">"

    def file_of(self, value):
        """The file where a function, or a class's functions, were written; "" if nothing tells."""
        for function in chain(value):
            code = code_of(function)
            if code is not None:
                return self.file(code)
        kind = value if isinstance(value, type) else type(value)
        codes = [code for code in map(code_of, vars(kind).values()) if code is not None]
        unknown = [code for code in codes if not self.whose(code)]
        return self.file((unknown or codes)[0]) if codes else ""


def code_of(value):
    """The code object of a function, method, property, or static or class method; None = it has none."""
    for name in ("__func__", "fget"):
        if isinstance(value, (types.MethodType, classmethod, staticmethod, property)):
            value = getattr(value, name, value)
    return value.__code__ if isinstance(value, types.FunctionType) else None


def chain(value):
    """The function, and what it is said to wrap, one after the other."""
    found: list = []
    while value is not None and len(found) < _LONGEST_CHAIN:
        for name in ("__func__", "func"):  # a method; a partial
            value = getattr(value, name, value) if not isinstance(value, (types.FunctionType, type)) else value
        if isinstance(value, property):
            value = value.fget
        found.append(value)
        value = vars(value).get("__wrapped__") if isinstance(value, types.FunctionType) else None
    return [one for one in found if isinstance(one, types.FunctionType)]
