"""Logs of agents, by whichever tool, as rollouts.

    from rtmc.logs import LogReader

    for rollout in LogReader(["runs/", "more.jsonl.gz"]):   # one after the other, in bounded memory
        ...

Read are this library's own JSON lines (rtmc/rollouts.py), SWE-agent's `.traj`, mini-swe-agent's `.traj.json`,
R2E-Gym's function-call text, Search-R1's tagged text, ALFWorld and HotpotQA transcripts in ReAct's form, and chats
with tool calls; which it is, is told from the content of each record.

What this is not: a reader judges nothing. A reward that a log does not state is unknown (NaN) until a file of
rewards says it (rewards.py), and an unknown tool's call is kept as the text it is.
"""

from rtmc.logs.detect import FORMATS
from rtmc.logs.reader import LogReader

__all__ = ["FORMATS", "LogReader"]
