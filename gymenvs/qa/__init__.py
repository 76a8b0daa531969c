"""Search QA: questions of one or several hops, a corpus to search, an answer to give.

Read it in this order: `metrics` (how answers are graded), `questions` (a task, and files of them: `formats`,
`recordfile`), `relations`, `world` and `generated` (the embedded set), `retrieval` (indexes, client, server), `sources`
(where questions and retriever come from), `actions` (what a message asks for), `texts` (what the environment says),
`env` (the gymnasium environment), `policies` (how hard the embedded set is), `scoring` (files of predictions).
"""

from rtmc.gymenvs.qa.env import SearchQAEnv, Snapshot
from rtmc.gymenvs.qa.generated import SPLITS
from rtmc.gymenvs.qa.metrics import exact_match, f1, normalize_answer
from rtmc.gymenvs.qa.questions import Question, read_questions

__all__ = ["SPLITS", "Question", "SearchQAEnv", "Snapshot", "exact_match", "f1", "normalize_answer", "read_questions"]
