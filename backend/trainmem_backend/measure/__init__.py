"""Rung 4: one real training step on a real GPU, measured phase by phase and written down as a row.

The parent process (``runner``) never imports torch. It starts one fresh child (``worker``) for every trial,
with the next child's imports already under way, guards the machine's memory, and appends every row with
fsync so that a killed or rebooted run goes on where it stopped.
"""
