"""Bugs in real repositories, fixed with tools in a sandbox and graded by tests that the agent cannot touch."""
