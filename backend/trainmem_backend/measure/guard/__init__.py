"""What keeps a machine alive when a prediction is wrong: a cap, a watchdog, and a gate between trials.

On a machine whose GPU shares the host's memory nothing outside the allocator helps: control groups and
container limits do not see CUDA memory, and running out often hangs the host instead of failing the program.
"""
