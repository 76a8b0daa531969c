"""Files rewritten through another one: `sed ... a.py > tmp && mv tmp a.py` changes a.py, as `sed -i` does.

What this is not: only what one command line does, from the file and back into it, is put together.
"""

from __future__ import annotations

from dataclasses import replace

from rtmc.signatures.effects import Effect
from rtmc.signatures.inplace import programme_effects


def rewriting(words: list[str], read: list[Effect]) -> Effect | None:
    """What is done to the one file that a filter reads, `read` being the effects of its pipeline; None where it is not
    one file's."""
    paths = {effect.path for effect in read if effect.category in ("view", "search") and effect.path}
    if len(paths) != 1 or not words:
        return None
    path = paths.pop()
    name = words[0].rpartition("/")[2]
    done = programme_effects(name, words)
    scope, new = (done[0].scope, done[0].new) if done else ("patch", " ".join(words))
    return Effect("modify", path, scope, new=new, shell=True)


def joined(effects: list[Effect], made: dict[str, Effect]) -> list[Effect]:
    """The effects with those that bring a file back into the one it was made of as one change of that; `made` = file ->
    the change that it holds."""
    found = list(effects)
    for place, effect in enumerate(effects):
        change = made.get(effect.path or "")
        if change is None or effect.category != "fileop" or effect.target != change.path:
            continue
        found[place] = replace(change, unit=effect.unit)
        before = [k for k, e in enumerate(effects[:place]) if e.unit < effect.unit]
        for k in before:
            looked = effects[k].category in ("view", "search") and effects[k].path == change.path
            written = effects[k].category == "create" and effects[k].path == effect.path
            if looked or (written and effect.scope == "move"):
                found[k] = replace(effects[k], category="execute", path="", scope="rewrite", aside=True)
    return found
