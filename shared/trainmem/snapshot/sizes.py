"""What lifetimes leave open and sizes decide, in the order in which the decisions need each other."""

from __future__ import annotations

from trainmem.snapshot.case import Case, Index, Kind
from trainmem.snapshot.casts import settle_casts
from trainmem.snapshot.logits import settle_logits
from trainmem.snapshot.owners import settle_owners

__all__ = ["settle"]


def settle(case: Case) -> None:
    """Replace every `Kind` among the verdicts by a bucket."""
    settle_owners(case)
    settle_casts(case)
    settle_logits(case)
    case.fill(Kind.SAVED, Index.ACTIVATIONS)
    case.fill(Kind.SAVED_BEFORE, Index.ACTIVATIONS)
    case.fill(Kind.FORWARD_TEMPORARY, Index.TEMPORARIES)
    case.fill(Kind.RECOMPUTED, Index.TEMPORARIES)
    case.fill(Kind.BACKWARD_TEMPORARY, Index.TEMPORARIES)
