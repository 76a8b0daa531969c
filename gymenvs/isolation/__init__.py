"""How a command is kept apart from the machine: one backend a file, and what the backends share.

Read it in this order: `contract` (limits, results, the protocol), `view` (what the inside sees), `seccomp` (which
system calls it may make), `cgroups` and `watch` (what it uses), `supervise` (the loop around a running command), then
the backends `bubblewrap`, `namespaces` with its `launcher`, and `plain`. `rtmc.gymenvs.sandbox` chooses among them.
"""
