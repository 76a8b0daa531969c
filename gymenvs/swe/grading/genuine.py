"""Protected tests are loaded from the text that was laid, whatever stands in their way, and known by their code.

Sent into the sandbox beside `guard`; see there for what it may use. Pytest's own import hook loads them, with three
parts of it replaced before any code of the tree runs: no compiled file is read in place of the text; the text is that
whose hash the grader knows; what it compiles to is noted in `Origin`, so that a function of another origin is told
from a test, under whatever name it stands in whatever module.
"""

import ast
import builtins
import hashlib
import os
import re
import types

from rtmc.gymenvs.swe.grading.equal import NAME, instrument
from rtmc.gymenvs.swe.grading.origin import LIBRARY, TEST, chain

_MAKES_CODE = re.compile(r"(?<![\w.])(?:exec|eval|compile)\(|FunctionType|CodeType|\.__code__")
_OWN = ("__name__", "__doc__", "__package__", "__loader__", "__spec__")


class Genuine:
    """Loads protected files, and answers whether a test's function comes from them.

    Args:
        told: `inside`, `protected` (path -> SHA-256).
        trust: answers for a test's wrappers; its origin gets the code that was loaded.
        comparer: what compares in the changed tests.
        before: called before a file is compiled: the last look at the runner.
        report: called with a path whose text is not the one that was laid.
    """

    def __init__(self, told, trust, comparer, before, report):
        self.trust, self.origin, self.comparer, self.before, self.report = trust, trust.origin, comparer, before, report
        inside = told["inside"]
        self.wanted = {os.path.join(inside, path): digest for path, digest in told["protected"].items()}
        self.stems = {os.path.splitext(os.path.basename(path))[0] for path in self.wanted}
        self.stems |= {os.path.basename(os.path.dirname(path)) for path in self.wanted if path.endswith("__init__.py")}
        self.texts = {}
        self.plain = False  # pytest itself was told to leave asserts as they are
        self.builtins = frozenset(vars(builtins)) | {NAME}

    def expect(self, path, text):
        """A file of the grader's own: a canary."""
        self.wanted[path] = hashlib.sha256(text.encode("utf-8")).hexdigest()
        self.stems.add(os.path.splitext(os.path.basename(path))[0])

    def install(self):
        """Replaces the parts of pytest's import hook. Before `Machinery` looks at it."""
        from _pytest.assertion import rewrite

        hook, wanted = rewrite.AssertionRewritingHook, self.wanted
        rewrite_test, rewrite_asserts, read_pyc = rewrite._rewrite_test, rewrite.rewrite_asserts, rewrite._read_pyc
        bails_out, should = hook._early_rewrite_bailout, hook._should_rewrite
        unmarked = set()

        def early_rewrite_bailout(hook, name, state):
            return name.rpartition(".")[2] not in self.stems and bails_out(hook, name, state)

        def should_rewrite(hook, name, file, state):
            if should(hook, name, file, state):
                return True
            if str(file) in wanted:
                unmarked.add(str(file))  # pytest would load it as it is
            return str(file) in wanted

        def rewrite_protected(file, config):
            path = str(file)
            if path not in wanted:
                first, code = rewrite_test(file, config)
                self.origin.own(code, self.origin.place(path))
                return first, code
            self.before()
            with open(path, "rb") as opened:
                source = opened.read()
            if hashlib.sha256(source).hexdigest() != wanted[path]:
                self.report(path)
            code = self.compile(source, path, config, None if self.plain or path in unmarked else rewrite_asserts)
            return None, code

        def read_library(source, pyc, *args, **options):
            if not self.origin.place(str(source)) == self.origin.place(str(pyc)) == LIBRARY:
                return None
            code = read_pyc(source, pyc, *args, **options)
            if code is not None:
                self.origin.own(code, LIBRARY)
            return code

        rewrite._rewrite_test = rewrite_protected
        rewrite._read_pyc = read_library
        rewrite._write_pyc = lambda *args, **options: False
        for name, function in (("_early_rewrite_bailout", early_rewrite_bailout), ("_should_rewrite", should_rewrite)):
            setattr(hook, name, function)
        setattr(builtins, NAME, self.comparer)

    def compile(self, source, path, config, rewrite_asserts):
        """The code of a protected file, asserts rewritten and comparisons looked at."""
        tree = ast.parse(source, filename=path)
        if rewrite_asserts is not None:
            rewrite_asserts(tree, source, path, config)
        instrument(tree)
        code = compile(tree, path, "exec", dont_inherit=True)
        self.origin.own(code, TEST)
        text = source.decode("utf-8", "replace")
        self.texts[path] = text
        self.comparer.texts.append(text)
        return code

    def foreign(self, function, path):
        """What is wrong with a test's function (collected from `path`): its origin, or where it looks names up.
        "" = nothing."""
        functions = chain(function)
        text = self.texts.get(path, "")
        if not functions:
            return "" if _MAKES_CODE.search(text) else "of no known code"
        for one in functions:
            foreign = self.trust.culprit(one)
            if foreign is not None and not self._given(one):
                name = one.__code__.co_filename
                known = self.origin.whose(one.__code__)
                if not known and (name == path or name.startswith("<")) and _MAKES_CODE.search(text):
                    continue  # the tests make code at run time
                return foreign
        names = functions[-1].__globals__
        if names.get("__builtins__") not in (builtins, vars(builtins)):
            return "of other builtins"
        if functions[-1].__code__.co_filename in self.texts:
            text = self.texts[functions[-1].__code__.co_filename]
            starred = "import *" in text
            for name in self.builtins & names.keys():
                # A module has some by itself; others only where it sets them, or takes whatever another module has.
                if name in _OWN or name in text or (starred and name not in ("AssertionError", NAME)):
                    continue
                return "of another " + name
        return ""

    def _given(self, function):
        """Whether it is the wrapper that Hypothesis writes for a test: all it does is to call one function."""
        code, cells = function.__code__, list(function.__closure__ or ())
        inner = getattr(getattr(function, "hypothesis", None), "inner_test", None)
        if inner is None or len(cells) != 1 or any(isinstance(one, types.CodeType) for one in code.co_consts):
            return False
        called = cells[0].cell_contents
        named = isinstance(called, types.FunctionType) and self.origin.whose(called.__code__)
        return bool(named) and set(code.co_names) <= {"not_set"} and self.trust.culprit(inner) is None
