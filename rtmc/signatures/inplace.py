"""Editors that a command line drives: sed, perl and ruby in place, ed, ex, vim, dd.

What this is not: no programme is run; what one does to known lines is `rtmc.signatures.sed`.
"""

from __future__ import annotations

import re
from itertools import pairwise

from rtmc.signatures.effects import Effect
from rtmc.signatures.sed import perl_swap

_IN_PLACE = {
    "sed": re.compile(r"-[nrEsuz]*i|--in-place"),
    "perl": re.compile(r"-[pnlaw0-9]*i"),
    "ruby": re.compile(r"-[pnla]*i"),
}
_AWKS = ("awk", "gawk", "mawk", "nawk")
# A programme that is one substitution in every line.
_GSUB = re.compile(
    r"\s*\{\s*(g?sub)\(/((?:[^/\\\n]|\\.){1,500})/,\s*\"((?:[^\"\\\n/]|\\.){0,500})\"\)[;\s]*(?:print[;\s]*)?\}\s*;?\s*1?\s*"
)
_SCRIPT = re.compile(r"-[a-zA-Z]*c|--cmd|-S")
_WRITES = re.compile(r"(?:^|\n|[|:\s])(?:wq?a?|x|up(?:date)?)!?\s*(?:$|\n)")


def edited_in_place(name: str, words: list[str], text: str | None = None) -> list[Effect]:
    """The effects of an editor's command line; none where it is no editor's, or writes nothing. `text` is what its
    standard input holds."""
    if name in _IN_PLACE:
        return _programme(name, words) if any(_IN_PLACE[name].match(w) for w in words[1:]) else []
    if name in _AWKS:
        return programme_effects(name, words) if ("-i", "inplace") in pairwise(words) else []
    if name in ("ed", "ex", "vi", "vim", "nvim"):
        pairs = list(pairwise(words))
        scripts = [after for word, after in pairs if _SCRIPT.fullmatch(word)]
        scripts += [word[1:] for word in words[1:] if word.startswith("+")]
        told = "\n".join([*scripts, text or ""])
        valued = [before for before, _ in pairs if _SCRIPT.fullmatch(before) or before in ("-u", "-p")]
        paths = [w for before, w in pairs if w[:1] not in ("-", "+", "") and before not in valued]
        writes = _WRITES.search(told) is not None
        return [Effect("modify", path, "patch", new=told, shell=True) for path in paths[:1]] if writes else []
    if name == "dd":
        written = next((w[3:] for w in words if w.startswith("of=")), "")
        known = written and not written.startswith("/dev/")
        return [Effect("create", written, "overwrite", new=text, shell=True)] if known else []
    return []


def programme_effects(name: str, words: list[str]) -> list[Effect]:
    """What the programme of a sed or an awk does to its files, or would if it wrote into them."""
    if name == "sed":
        return _programme(name, words)
    if name not in _AWKS:
        return []
    plain = [w for before, w in pairwise(words) if not w.startswith("-") and before not in ("-i", "-v", "-F", "-f")]
    programme, paths = (plain[0], plain[1:]) if plain else ("", [])
    found = _GSUB.fullmatch(programme)
    if found is None:
        return [Effect("modify", path, "patch", new=programme, shell=True) for path in paths]
    text = f"s/{found[2]}/{found[3]}/{'g' if found[1] == 'gsub' else ''}"
    return [Effect("modify", path, "sed-E", new=text, shell=True) for path in paths]


def _programme(name: str, words: list[str]) -> list[Effect]:
    programmes, paths, at = [], [], 1
    extended = whole = False
    while at < len(words):
        word = words[at]
        if re.fullmatch(r"-[a-zA-Z0-9]*e|--expression", word) and at + 1 < len(words):
            extended |= "E" in word or "r" in word[:-1]
            whole |= "0" in word
            at += 1
            programmes.append(words[at])
        elif word.startswith("--expression="):
            programmes.append(word.partition("=")[2])
        elif word in ("-f", "--file") and at + 1 < len(words):
            at += 1
            programmes.append(f"file {words[at]}")
        elif word.startswith("-") and word != "-":
            extended |= word in ("--regexp-extended", "-r", "-E") or re.match(r"-[nsuz]*[rE]", word) is not None
            whole |= "0" in word
        elif word:  # an empty one is BSD's `-i ''`
            paths.append(word)
        at += 1
    if not programmes and paths:
        programmes.append(paths.pop(0))
    programme = "\n".join(programmes)
    scope = "patch" if name == "ruby" else "perl" if name == "perl" else "sed-E" if extended else "sed"
    swap = perl_swap(programme) if name == "perl" and whole else None
    if name == "perl" and whole:
        scope = "patch" if swap is None else "replace"
    swaps = () if swap is None else (swap,)
    return [Effect("modify", path, scope, new=programme, shell=True, swaps=swaps) for path in paths or [""]]
