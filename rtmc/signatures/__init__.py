"""Signatures: what makes two states, or two actions, of a task's rollouts the same.

What this is not: a signature computes no statistics and never sees a reward; it only names states and
actions.

Design requirements
1. A state key may depend on everything before the step and on nothing after it. (One thing is looked up ahead: where
   the repository lies, which no step changes; rtmc/signatures/roots.py.)
2. Equal keys mean "the same for credit", so a key is text that a reader can check, not a bare hash.
3. One pass over a rollout: a state folds step by step, it is never rebuilt from the start.
4. A user's own signature is a class with two methods and one call of `register_signature`.

    class Signature(Protocol):
        def action(self, step: Step) -> str: ...            key of the action
        def state(self, rollout: Rollout) -> State: ...     a state before the first step

    class State(Protocol):
        def key(self) -> str | None: ...                    key now; None only after the last step: not known
        def update(self, step: Step) -> None: ...           the step has been taken and answered
        def action(self, step: Step) -> str: ...            optional: key of the action taken in this state

Further optional methods of a signature: `fit(rollouts)`, called with all rollouts first where keys depend on them
(clusters); `validates(action_key) -> bool`, whether an action checks the agent's own work.

A built-in signature's options are given with its name, `get_signature("swe", hash_chars=0)`, or within it, wherever a
name is taken: `"swe:hash_chars=0,bucket=50"`.
"""

from rtmc.signatures.protocol import (
    Signature,
    State,
    get_signature,
    register_signature,
    signature_names,
)

__all__ = ["Signature", "State", "get_signature", "register_signature", "signature_names"]
