"""Rung 2: a step replayed on byte counts."""
