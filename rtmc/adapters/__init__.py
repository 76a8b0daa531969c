"""Step-level credit inside the engines people train with, one file an engine.

    verl          register_adv_est, compute_advantage, the trainer with a transfer queue
    trl           a mixin for GRPOTrainer that writes (B, T) advantages
    verifiers     message graphs, whose branches are a tree (prime-rl trains on them)
    rows          batches of one row a step: verl-agent, ROLL
    rllm          trajectory groups with `step.advantage` lists
    tinker        transitions, and the data that tinker-cookbook makes of them

Every adapter turns what its engine hands over into a `StepTable`, calls `rtmc.estimate` and writes the result where
the engine reads it. An engine is imported when it is needed and not before; where it is missing the error says how
to get it. The head of each file shows the lines to paste.

What this is not: a trainer, or a patch of an engine. Nothing here changes an engine's module.
"""
