"""Whether code may be trusted with what it stands on: a function is as good as what it wraps, holds and calls.

Sent into the sandbox beside `guard`; see there for what it may use. `Origin` tells whose one code object is. But a
library's wrapper around the agent's function has the library's code, and so has a library's function that was given
other globals, or whose module the agent has filled with his own.
"""

import functools
import types

from rtmc.gymenvs.swe.grading.origin import TEST, chain, code_of

_MOST = 4000  # objects that one question leads through
# By these, an object of a class has a say over the code that it is used around.
_TAKING = ("__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__getattr__", "__getattribute__", "__get__")
_HOLDERS = (list, tuple, set, frozenset)
_ATOMS = (str, bytes, int, float, complex, type(None), types.ModuleType, types.CodeType)


class Trust:
    """Questions about values, answered by the file of the first code found that nobody vouches for.

    Args:
        origin: tells whose code is.
        as_before: whether a code object is one that a changed file had before the agent.
    """

    def __init__(self, origin, as_before):
        self.origin, self.as_before = origin, as_before

    def culprit(self, value, strict=False):
        """The file of foreign code in a function (method, class, object) and in all it stands on; None = there is none.

        What a test's own code stands on is the test's affair. `strict`: what a changed file had before counts as the
        agent's too, every method of a class is looked at, and called functions are followed to the end.
        """
        waiting: list = [(value, 0)]
        seen: dict = {}
        for one, depth in waiting:
            if len(seen) >= _MOST:
                break
            if id(one) in seen or isinstance(one, _ATOMS):
                continue
            seen[id(one)] = one
            if isinstance(one, types.FunctionType):
                if not self._vouched(one.__code__, strict):
                    return self.origin.file(one.__code__)
                if self.origin.whose(one.__code__) != TEST:
                    waiting += [(held, depth) for held in _held(one)]
                    if strict or depth == 0:
                        waiting += [(called, depth + 1) for called in _called(one)]
            elif isinstance(one, type):
                for name, member in list(vars(one).items()):
                    code = code_of(member) if strict or name in _TAKING else None
                    if code is not None and not self._vouched(code, strict):
                        return self.origin.file(code)
            else:
                waiting += [(part, depth) for part in self._parts(one, strict)]
        return None

    def author(self, value):
        """The file of what stands in the place of a function of the runner: of what is foreign in it, if anything."""
        found = self.culprit(value, strict=True)
        return self.origin.file_of(value) if found is None else found

    def _vouched(self, code, strict):
        return bool(self.origin.whose(code)) or (not strict and bool(self.as_before(code)))

    @staticmethod
    def _parts(one, strict):
        """What an object that is no function and no class is made of."""
        if isinstance(one, types.MethodType):
            return [one.__func__, one.__self__]
        if isinstance(one, (classmethod, staticmethod)):
            return [one.__func__]
        if isinstance(one, property):
            return [one.fget]
        if isinstance(one, (functools.partial, functools.partialmethod)):
            return [one.func, *one.args, *one.keywords.values()]
        if isinstance(one, _HOLDERS):
            return list(one)
        if isinstance(one, dict):
            return list(one.values())
        held = list(getattr(one, "__dict__", {}).values()) if strict else []
        return [*type(one).__mro__, *held]


def _held(function):
    """What a function holds: in its closure and as defaults."""
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # nothing was put into it
    return found


def _called(function):
    """Functions and classes that a function names among its globals."""
    names, codes = set(), [function.__code__]
    for code in codes:
        names.update(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    values = [function.__globals__[name] for name in names & function.__globals__.keys()]
    return [one for one in values if isinstance(one, type) or chain(one)]
