"""Which signatures fit a rollout, and so its task, told from the format it was read from, or from what its steps do.

What this is not: a guess that goes unsaid. Whoever uses it says which signatures it chose; a name given by the user
overrides it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rtmc.logs.detect import FORMATS
from rtmc.rollouts import Rollout, Step
from rtmc.signatures.keys import word_set

# Tools by which a chat is known. `search` is a tool of software agents too: those have one of the others as well.
_SWE_TOOLS = word_set(
    "bash execute_bash shell terminal run_command run_shell_command execute_command run_in_terminal local_shell "
    "run_terminal_cmd str_replace_editor str_replace_based_edit_tool file_editor edit_file apply_patch apply_diff "
    "execute_ipython_cell read read_file view_file open_file edit multiedit write write_file write_to_file create_file "
    "replace_in_file str_replace edit_file_by_replace grep glob list_dir notebookedit exec_command shell_command "
    "launch-process save-file str-replace-editor viewcode stringreplace read_many_files search_file_content"
)
_QA_TOOLS = frozenset(
    ["search", "lookup", "finish", "retrieve", "retriever", "wikipedia", "web_search", "search_wikipedia", "answer"]
)
_SWE_TEXT = re.compile(
    r"<function\s*=\s*\w+>|^```(?:bash|sh|mswea_bash_command)\s*$|<execute_(?:bash|ipython)>"
    r"|^<(?:write_to_file|replace_in_file|read_file|execute_command|apply_diff)>",
    re.MULTILINE,
)
_QA_TEXT = re.compile(r"<search>|<answer>|^\s*(?:Action(?: \d+)?: *)?(?:Search|Lookup|Finish)\[", re.MULTILINE)
_HOUSEHOLD = re.compile(r"You are in the middle of a room\. Looking quickly around you")
_LOOKED_AT = 30  # steps; a log that has shown nothing by then is none of these


def signatures_for(rollout: Rollout) -> str:
    """Name of the signatures that fit: "env" where every step bears the environment's own keys, else "swe", "qa" or
    "household" by the format or the tools, else "text"."""
    if rollout.steps and all(s.state_key is not None and s.action_key is not None for s in rollout.steps):
        return "env"
    form = rollout.meta.get("format")
    if isinstance(form, str) and form in FORMATS and FORMATS[form].domain:
        return FORMATS[form].domain
    steps = rollout.steps[:_LOOKED_AT]
    tools = {name for step in steps for name in map(_tool, step.tool_calls)}
    if tools & _SWE_TOOLS:
        return "swe"
    if any(_HOUSEHOLD.search(step.observation) for step in steps[:2]):
        return "household"
    if tools & _QA_TOOLS:
        return "qa"
    return next((name for name in map(_told, steps) if name), "text")


class Choice:
    """The signatures of rollouts that come one after the other, as `tabulate` asks for them.

    A task's rollouts are compared by one name: `fixed` gives it by task; `agreed` says, once all have come, what it is.

    counts   name -> rollouts that got it
    mixed    task -> its rollouts by name, of the tasks that got several
    """

    def __init__(self, fixed: Mapping[str, str] | None = None) -> None:
        self._fixed = fixed or {}
        self._names: dict[str, Counter[str]] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, rollout: Rollout) -> str:
        name = self._fixed.get(rollout.task_id) or signatures_for(rollout)
        self.counts[name] += 1
        if rollout.steps:  # else there is nothing to compare, and nothing that tells its form
            self._names.setdefault(rollout.task_id, Counter())[name] += 1
        return name

    @property
    def mixed(self) -> dict[str, Counter[str]]:
        return {task: names for task, names in self._names.items() if len(names) > 1}

    def agreed(self) -> dict[str, str]:
        """One name for each mixed task: the commonest that reads acts (of equals the first by alphabet), for a rollout
        that does nothing by which it could be known is of its task all the same; "text" where there is none, as the
        environment's own keys are not in all of them."""
        found = {}
        for task, names in self.mixed.items():
            able = sorted((-count, name) for name, count in names.items() if name not in ("env", "text"))
            found[task] = able[0][1] if able else "text"
        return found


def _told(step: Step) -> str:
    if _SWE_TEXT.search(step.action):
        return "swe"
    return "qa" if _QA_TEXT.search(step.action) else ""


def _tool(call: dict[str, Any]) -> str:
    """Name of the tool that is called, in lower case and without a prefix such as `functions.`."""
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, dict) else function
    return re.split(r"[.:/]", name)[-1].lower() if isinstance(name, str) else ""
