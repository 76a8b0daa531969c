"""A world small enough for a random model to learn: name the thing that was asked for, once or twice in a row."""

from __future__ import annotations

from typing import Any

import gymnasium

from rtmc.gymenvs.spaces import UnicodeText

WORDS = ("mug", "pen", "egg", "key")
ID = "tests/Copy-v0"


class CopyWorld(gymnasium.Env[str, str]):
    """Observation: the wanted thing. Success: it was named in every turn.

    `fail_at`: the turn that raises, -1 the reset; `broken_every` n: the seeds 1, n + 1, 2n + 1, ... cannot be reset.
    """

    def __init__(
        self,
        turns: int = 1,
        fail_at: int | None = None,
        listed: bool = True,
        numbered: bool = True,
        broken_every: int | None = None,
    ) -> None:
        self.observation_space = UnicodeText(100)
        self.action_space = UnicodeText(100)
        self.broken_every = broken_every
        self.turns, self.fail_at, self.listed, self.numbered = turns, fail_at, listed, numbered

    def _info(self, action: str | None, valid: bool, success: bool) -> dict[str, Any]:
        info = {
            "task_id": f"copy/{'-'.join(self.wanted)}",
            "state_key": "/".join(self.said) or "start",
            "action_key": action,
            "valid": valid,
            "success": success,
        }
        if self.listed:
            info["admissible_commands"] = list(WORDS)
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.wanted = [WORDS[int(self.np_random.integers(len(WORDS)))] for _ in range(self.turns)]
        self.said: list[str] = []
        if self.fail_at == -1 or (self.broken_every and seed is not None and seed % self.broken_every == 1):
            raise RuntimeError("the world broke")
        case = f"case {seed} " if self.numbered else ""
        return f"{case}wants {self.wanted[0]}", self._info(None, True, False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.fail_at == len(self.said):
            raise RuntimeError("the world broke")
        right = action == self.wanted[len(self.said)]
        self.said.append(action)
        done = not right or len(self.said) == self.turns
        success = right and done
        text = "end" if done else f"now wants {self.wanted[len(self.said)]}"
        return text, float(success), done, False, self._info(action, action in WORDS, success)


def register() -> None:
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point=CopyWorld)
