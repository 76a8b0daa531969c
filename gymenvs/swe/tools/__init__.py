"""The agent's tools: R2E-Gym's and SWE-agent's editors, search, commands, and mini-swe-agent's shell."""

from rtmc.gymenvs.swe.tools.helptexts import EDITORS, TOOL_HELP, tool_help, tool_names, tool_schemas
from rtmc.gymenvs.swe.tools.results import ToolLimits, ToolResult, Viewed
from rtmc.gymenvs.swe.tools.toolbox import Toolbox

__all__ = [
    "EDITORS",
    "TOOL_HELP",
    "ToolLimits",
    "ToolResult",
    "Toolbox",
    "Viewed",
    "tool_help",
    "tool_names",
    "tool_schemas",
]
