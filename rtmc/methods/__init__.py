"""Estimators: one file a family, each a short composition of the kernels, all under `rtmc.estimate`."""
