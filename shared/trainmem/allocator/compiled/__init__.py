"""The allocator's hot loop as machine code: the same rules as `trainmem.allocator.caching`, about ten times as fast.

The C files in this folder are built when the package is installed where there is a C compiler (``hatch_build.py``);
``bench/allocator.py`` compares the two. Without one, and for settings whose rules only the Python has,
`compiled_allocator` answers None and the Python runs; what it says is the same, event by event, which the tests
hold.
"""

from trainmem.allocator.compiled.caching import CompiledAllocator, compiled_allocator
from trainmem.allocator.compiled.events import event_of, first_freed
from trainmem.allocator.compiled.laying import (
    ALLOCATED,
    ALLOCATED_FIRST,
    ALLOCATED_ONCE,
    GIVEN,
    Laid,
    Parts,
    Row,
)
from trainmem.allocator.compiled.library import is_compiled

__all__ = [
    "ALLOCATED",
    "ALLOCATED_FIRST",
    "ALLOCATED_ONCE",
    "GIVEN",
    "CompiledAllocator",
    "Laid",
    "Parts",
    "Row",
    "compiled_allocator",
    "event_of",
    "first_freed",
    "is_compiled",
]
