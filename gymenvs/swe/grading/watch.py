"""What the guard watches inside the sandbox: the runner's own functions, and acts that no fix has need of.

Sent into the sandbox beside `guard`; see there for what it may use.
"""

import os
import sys
import types

WATCHED_PACKAGES = ("_pytest", "pytest", "pluggy", "unittest")
# Checked after every test; the whole list after collection and at the end.
CRITICAL = (
    "_pytest.runner",
    "_pytest.reports",
    "_pytest.python",
    "_pytest.unittest",
    "_pytest.skipping",
    "_pytest.outcomes",
    "_pytest.raises",
    "_pytest.python_api",
    "_pytest.assertion",
    "pluggy",
    "unittest.case",
)


class Machinery:
    """The functions and classes of the runner as they were, compared by identity with what is there later."""

    def __init__(self):
        self.entries, self.critical, recorded = [], [], set()
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in WATCHED_PACKAGES and isinstance(module, types.ModuleType):
                inner = any(name == one or name.startswith(one + ".") for one in CRITICAL)
                self._record(name, vars(module), inner)
                for label, value in list(vars(module).items()):
                    if isinstance(value, type) and value.__module__ == name and value not in recorded:
                        recorded.add(value)
                        self._record(name + "." + label, value.__dict__, inner)
        import builtins

        self._record("builtins", vars(builtins), True)

    def _record(self, where, names, critical):
        kept = (types.FunctionType, types.BuiltinFunctionType, type, property, classmethod, staticmethod)
        for label, value in list(names.items()):
            if isinstance(value, kept):
                entry = (where, names, label, value, self._body(value))
                self.entries.append(entry)
                if critical:
                    self.critical.append(entry)

    @staticmethod
    def _body(value):
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            return (function.__code__, function.__defaults__, function.__kwdefaults__)
        return None

    def settled(self, inside):
        """The same once plugins have loaded: some of pytest's own replace parts of it. What the tree's code has
        replaced by then is told as a change."""
        found = [one for one in self.changes(True) if one[1].startswith(inside + "/")]
        return Machinery(), found

    def changes(self, whole):
        """(name, file of what stands there now or "") of every entry that is not what it was."""
        absent = object()
        found = []
        for where, names, label, value, body in self.entries if whole else self.critical:
            now = names.get(label, absent)
            if now is not value:
                found.append((where + "." + label, "" if now is absent else source_of(now)))
            elif body is not None:
                function = getattr(value, "__func__", value)
                if function.__code__ is not body[0]:
                    found.append((where + "." + label + ".__code__", function.__code__.co_filename))
                elif function.__defaults__ is not body[1] or function.__kwdefaults__ is not body[2]:
                    found.append((where + "." + label + ".__defaults__", ""))
        return found


def source_of(value):
    """The file where a function or class was written, "" if that cannot be told."""
    for _ in range(8):  # wrappers around wrappers
        value = getattr(value, "__func__", getattr(value, "func", getattr(value, "fget", value)))
        code = getattr(value, "__code__", None)
        if code is not None:
            return code.co_filename
        if isinstance(value, type):
            return getattr(sys.modules.get(value.__module__), "__file__", "") or ""
        value = type(value)
    return ""


def make_watch(send, inside, protected, libraries):
    """An audit hook (it cannot be taken off): tells of acts that no fix needs, with the file that did them."""
    quiet = {"sys.settrace", "sys.setprofile", "sys.addaudithook", "gc.get_objects", "gc.get_referrers", "os.fork"}
    quiet |= {"ctypes.dlopen", "os.exec", "os.system", "os.posix_spawn", "subprocess.Popen"}
    paths = {"open", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
    guarded = {os.path.join(inside, path) for path in protected}
    above = {os.path.dirname(path) for path in guarded}
    while True:
        wider = above | {os.path.dirname(path) for path in above}
        if wider == above:
            break
        above = wider
    above = {path for path in above if path.startswith(inside + "/")}
    writing = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT
    frame_of, join, owner, getpid = sys._getframe, os.path.join, os.getpid(), os.getpid
    busy, told = [False], set()

    def actor():
        """The innermost file that is neither a library's nor the interpreter's own."""
        step: types.FrameType | None = frame_of(2)
        while step is not None:
            name = step.f_code.co_filename
            if not name.startswith(libraries) and not name.startswith("<"):
                return name
            step = step.f_back
        return ""

    def target(value):
        if isinstance(value, bytes):
            value = os.fsdecode(value)
        if not isinstance(value, str):
            return ""
        return os.path.normpath(join(os.getcwd(), value))

    def hook(event, args):
        if busy[0] or not (event in quiet or event in paths or event == "object.__setattr__"):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & writing):
            return
        busy[0] = True
        try:
            if getpid() != owner:
                return
            what = ""
            if event in paths:
                named = [target(one) for one in args[:2]]
                hit = [one for one in named if one in guarded or (one in above and event != "open")]
                hit += [one for one in named if one.startswith("/proc/") and one.endswith("/mem")]
                what = hit[0] if hit else ""
            elif event == "object.__setattr__":
                # Swapping the code of a function of its own is a module's own affair.
                old = getattr(getattr(args[0], "__code__", None), "co_filename", "")
                runner = any(part in old for part in ("/_pytest/", "/pluggy/", "/unittest/", "<rtmc guard>"))
                what = old if args[1] == "__code__" and (old in guarded or runner) else ""
            else:
                what = "called"
            if what:
                who = actor()
                if who and (event, what, who) not in told:
                    told.add((event, what, who))
                    send("act", event, what, who)
        except Exception as error:
            send("fault", repr(error)[:500])
        finally:
            busy[0] = False

    return hook
