"""Which steps of a log were valid: the environment took the action, or said that it was malformed or refused.

What this is not: success. A failing test, a search without hits or a command's error code answer a valid action. A
step that says of itself whether it was valid, as an environment's `info` does, is left as it is.
"""

from __future__ import annotations

import re

from rtmc.rollouts import Rollout, Step
from rtmc.signatures.refusals import NOT_RUN

# How an answer begins that refuses the action; each is the tool's own text.
_REFUSALS = (
    *NOT_RUN,
    # SWE-agent: an edit that does not parse or does not apply
    r"Your proposed edit has introduced new syntax error\(s\)",
    r"Your edit was not applied",
    r"Text not found",
    r"No file open",
    r"(?:ERROR:\s*)?No replacement was performed",
    # R2E-Gym: an edit that does not apply
    r"ERROR: (?:No|Multiple) occurrences of ",
    r"ERROR: File already exists at: ",
    # Search-R1
    r"My previous action is invalid",
    # ALFWorld
    r"Nothing happens\.",
    # ReAct and Reflexion
    r"Invalid [Aa]ction\b",
)
_REFUSED = re.compile("|".join(f"(?:{words})" for words in _REFUSALS))
_LABEL = re.compile(r"(?:Execution output of \[\w+\]|OBSERVATION|Observation):\s*")
# An editor's label, behind which every error is the editor's own.
_EDITOR = re.compile(r"Execution output of \[(?!execute_bash)\w+\]:\s*(?:ERROR|Error)\b")


def is_refused(answer: str) -> bool:
    """Whether an environment's answer says that the action was malformed or refused."""
    text = answer[:2000].lstrip()
    if _EDITOR.match(text) is not None:
        return True
    label = _LABEL.match(text)
    return _REFUSED.match(text, label.end() if label is not None else 0) is not None


def mark_valid(rollout: Rollout) -> None:
    """Fill in `valid` where a step does not say: True unless its answer refuses the action."""
    for step in rollout.steps:
        if step.valid is None:
            step.valid = not _refused(step)


def _refused(step: Step) -> bool:
    return step.answer is not None and is_refused(step.answer)
