"""What a git command does to files: reverted, staged, committed, patched, or only looked at.

What this is not: no repository is looked at; whether there was anything to stash or to commit is told by the answer.
"""

from __future__ import annotations

import re

from rtmc.signatures.edits import patch_effects, patched_by, reversed_effects
from rtmc.signatures.effects import Effect
from rtmc.signatures.keys import word_set
from rtmc.signatures.paths import WHOLE
from rtmc.signatures.readers import searched

_LOOKS = word_set("diff show log blame status branch rev-parse remote describe tag")
# With one of these `git apply` only says what it would do.
_DRY = ("--check", "--stat", "--numstat", "--summary")


def git_effects(words: list[str], text: str | None, reads: str | None) -> list[Effect]:
    """The effects of `git ...`; `text` is what its standard input holds, `reads` the file that it comes from."""
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in ("-C", "-c") else rest[1:]
    verb = rest[0] if rest else ""
    plain = [w for w in rest[1:] if not w.startswith("-")]
    after = rest[rest.index("--") + 1 :] if "--" in rest else None
    if verb in ("apply", "am"):
        return _applied(verb, rest, plain, text, reads)
    if verb in ("checkout", "restore", "reset", "stash"):
        found = _reverted(verb, rest, plain, after)
        if found:
            return found
    if verb == "clean":
        return [Effect("fileop", plain[0] if plain else "", "clean", shell=True)]
    if verb == "rm":
        scope = "unstage" if "--cached" in rest else "delete"
        return [Effect("fileop", path, scope, shell=True) for path in plain]
    if verb == "mv" and len(plain) > 1:
        return [Effect("fileop", path, "move", target=plain[-1], shell=True) for path in plain[:-1]]
    if verb == "grep":
        return searched("grep", ["grep", *rest[1:]])
    if verb == "ls-files":
        return [Effect("search", path, shell=True) for path in plain or [""]]
    if verb in _LOOKS:
        paths = after if after else [p for p in plain if _is_file([p])]
        return [Effect("view", path, f"git-{verb}", shell=True) for path in paths[:1] or [WHOLE]]
    if verb == "add":
        paths = [] if any(w in ("-A", "-u", "--all", "--update") for w in rest) else plain
        return [Effect("execute", path, "git-add", aside=True, shell=True) for path in paths or [WHOLE]]
    named = re.sub(r"[^\w-]", "_", f"git-{verb}"[:30]) if verb else "git"
    everything = verb == "commit" and any(re.fullmatch(r"-[a-z]*a[a-z]*|--all", w) for w in rest)
    return [Effect("execute", WHOLE, named, term="-a" if everything else "", aside=verb == "config", shell=True)]


def _applied(verb: str, rest: list[str], plain: list[str], text: str | None, reads: str | None) -> list[Effect]:
    if verb == "apply" and any(w in _DRY for w in rest) and "--apply" not in rest:
        return [Effect("execute", plain[0] if plain else "", "git-apply-check", shell=True)]
    patched = [] if text is None else patch_effects(text)
    reverse = any(w in ("-R", "--reverse") for w in rest)
    if patched and reverse:
        patched = reversed_effects(patched)
    source = next((w for w in plain if w != "-"), reads or "")
    return patched or patched_by(source, text, reverse)


def _reverted(verb: str, rest: list[str], plain: list[str], after: list[str] | None) -> list[Effect]:
    """Effects of a command that may take changes back; none where it does not."""
    if verb == "restore" and any(w in ("--staged", "-S") for w in rest):
        if not any(w in ("--worktree", "-W") for w in rest):
            return [Effect("fileop", path, "unstage", shell=True) for path in (after if after is not None else plain)]
    elif verb == "reset" and "--hard" not in rest:
        paths = after if after is not None else [p for p in plain if _is_file([p])]
        return [Effect("fileop", path, "unstage", shell=True) for path in paths]
    if verb == "restore" or (verb == "checkout" and (after is not None or plain == ["."] or _is_file(plain[-1:]))):
        if verb == "checkout" and any(w in ("-b", "-B") for w in rest):
            return []
        files = plain if verb == "restore" else [p for p in plain if p == "." or _is_file([p])]
        paths = after if after is not None else files
        # From the index, unless a commit is named.
        named = len(plain) > len(paths) or any(w.startswith(("--source", "-s")) for w in rest)
        whence = "HEAD" if named else "index"
        return [Effect("fileop", path, "revert", term=whence, shell=True) for path in paths or [""]]
    if verb == "reset":
        back = "back" if any(re.search(r"[~^]", w) for w in plain) else "HEAD"
        return [Effect("fileop", WHOLE, "revert", term=back, shell=True)]
    if verb == "stash" and plain[:1] in ([], ["push"], ["save"]):
        return [Effect("fileop", WHOLE, "revert", term="stash", shell=True)]
    if verb == "stash" and plain[:1] in (["pop"], ["apply"]):
        return [Effect("fileop", WHOLE, "unrevert", shell=True)]
    return []


def _is_file(words: list[str]) -> bool:
    """`git checkout f.py` names a file, `git checkout main` a branch."""
    return bool(words) and all(re.search(r"\.\w{1,5}$", w) and ".." not in w for w in words)
