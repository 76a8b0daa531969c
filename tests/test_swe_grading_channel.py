"""The channel of results, in a process that may open few descriptors."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("limit", [24, 64, 110, 201])
def test_the_channel_opens_below_the_limit_of_descriptors(limit):
    script = f"""
import os, resource
from rtmc.gymenvs.swe.grading import guard
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
pick = guard.random.SystemRandom.randrange
for end in (0, -1):  # the least and the greatest that chance can give
    guard.random.SystemRandom.randrange = lambda self, low, high: range(low, high)[end]
    out = os.dup(1)
    guard.make_channel(b"key")("kind", end)
    os.dup2(out, 1)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert told.stderr == ""
    assert [line.partition("]")[0] for line in told.stdout.splitlines()] == ['[0, "kind", 0', '[0, "kind", -1']
