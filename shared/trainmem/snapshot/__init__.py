"""Memory snapshots of strangers: read safely, understood, compared and shown.

``read_snapshot`` opens a file of ``torch.cuda.memory._dump_snapshot`` in a process of its own and never runs what
is in it; ``analyse`` replays the events and says what filled the memory; ``document_of`` and ``render_page`` give
the answer as JSON and as a page; ``compare`` sets two of them side by side.
"""

from trainmem.snapshot.analysis import Analysis, DeviceAnalysis, analyse
from trainmem.snapshot.compare import Comparison, compare
from trainmem.snapshot.document import document_of
from trainmem.snapshot.limits import WEB, Limits, command_line_limits
from trainmem.snapshot.model import Snapshot
from trainmem.snapshot.page import render_comparison, render_page
from trainmem.snapshot.reader import SnapshotRejected, read_snapshot
from trainmem.snapshot.summary import Profile, Summary, summary_of, summary_of_estimate

__all__ = [
    "WEB",
    "Analysis",
    "Comparison",
    "DeviceAnalysis",
    "Limits",
    "Profile",
    "Snapshot",
    "SnapshotRejected",
    "Summary",
    "analyse",
    "command_line_limits",
    "compare",
    "document_of",
    "read_snapshot",
    "render_comparison",
    "render_page",
    "summary_of",
    "summary_of_estimate",
]
