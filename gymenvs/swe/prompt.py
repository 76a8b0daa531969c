"""What the environment says by itself: the first observation, and that a command could not be run."""

from __future__ import annotations

from rtmc.gymenvs.swe.task import SWETask
from rtmc.gymenvs.swe.tools import tool_help

COULD_NOT_RUN = "The command could not be run: the sandbox failed. Nothing was changed by it; you may try again."
_OPENING = """A repository lies at {inside}. It has the bug that this issue tells of.

<issue>
{issue}
</issue>

Find the cause and mend it in the repository's source. Your change is judged by tests that you do not see; those that \
pass now have to go on passing, and changes to tests do not count. You have {turns} messages.

{tools}"""


def opening(task: SWETask, syntax: str, editor: str, max_turns: int, inside: str) -> str:
    """The first observation: the issue, where the repository is, and how to call the tools."""
    issue = task.problem_statement.strip() or "(No text came with it: the tests of the repository tell more.)"
    return _OPENING.format(inside=inside, issue=issue, turns=max_turns, tools=tool_help(syntax, editor, inside))
