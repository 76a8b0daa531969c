"""Diagnosis: what a method does to a gradient, and which methods a table can feed."""
