"""What runs in the process that opens a stranger's file.

`trainmem.snapshot.reader` starts it with ``python -I -S -B`` and this folder as the only addition to the
standard library, so the modules here import each other relatively and nothing else of trainmem.
"""
