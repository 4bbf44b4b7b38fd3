"""The whole sum for one job: every term of the whiteboard, by bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from trainmem.buckets import BUCKETS, Bucket
from trainmem.job import TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.activations import activation_terms
from trainmem.whiteboard.adapters import trainable_shapes
from trainmem.whiteboard.gap import Gap, explain_gap
from trainmem.whiteboard.logits import logit_terms
from trainmem.whiteboard.optimizer_state import optimizer_terms
from trainmem.whiteboard.sharding import communication_terms
from trainmem.whiteboard.states import recipe_of, state_terms
from trainmem.whiteboard.term import Term

__all__ = ["Whiteboard", "whiteboard"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Whiteboard:
    """The sum for one rank: its terms, the ten buckets, the total, and why real code needs more.

    ``peak_bytes`` adds everything up as if all of it were alive at one instant, which is what one does on a
    whiteboard; ``gap`` says what that gets wrong.
    """

    job: TrainingJob
    architecture: Architecture
    parameters: int
    trainable_parameters: int
    terms: tuple[Term, ...]
    buckets: dict[Bucket, int]
    peak_bytes: int

    @property
    def gap(self) -> Gap:
        """Item by item from the board's sum to the peak of real code, worked out when asked for."""
        return explain_gap(self.job, self.architecture, self.buckets)

    def rests(self, buckets_at_peak: Mapping[Bucket, int]) -> dict[Bucket, int]:
        """What board and gap leave to a replayed or measured peak, by bucket, so that the sum closes to the byte.

        Equation: rest = bytes at the peak - (board + items of the gap), in each bucket. It holds what no line
        names: roundings of the allocator, scratch memory of kernels, gradients on their way.
        """
        explained = dict(self.buckets)
        for item in self.gap.items:
            explained[item.bucket] += item.bytes
        return {bucket: buckets_at_peak.get(bucket, 0) - explained[bucket] for bucket in BUCKETS}


def _activations_and_logits(job: TrainingJob, architecture: Architecture) -> tuple[Term, ...]:
    stages = job.sharding.pipeline_parallel
    last = (*activation_terms(job, architecture), *logit_terms(job, architecture))
    if stages == 1:
        return last
    first = tuple(activation_terms(job, architecture, in_flight=min(stages, job.accumulation)))
    return max(first, last, key=lambda terms: sum(term.bytes for term in terms))


def whiteboard(job: TrainingJob, architecture: Architecture) -> Whiteboard:
    """The sum for ``job`` on a model of this ``architecture``, on one rank; of a pipeline, on its fullest
    stage.

    Equation: state bytes per parameter + L c s b h (+ L 5 a s² b when attention is eager) + 10 s b V.
    Leaves out: everything in `trainmem.whiteboard.gap`. Known error: against 106 steps measured on an H200
    the median is 14% and the worst 40%, mostly too low.
    """
    trainable = sum(copies * prod(shape) for shape, copies in trainable_shapes(architecture, job.lora))
    terms = (
        *state_terms(job, architecture),
        *optimizer_terms(job, architecture),
        *_activations_and_logits(job, architecture),
        # collectives carry what backward makes, which a hook converts to fp32 where gradients are kept so
        *communication_terms(job, architecture, trainable, recipe_of(job).weight_bytes),
    )
    terms = tuple(sorted(terms, key=lambda term: BUCKETS.index(term.bucket)))
    buckets: dict[Bucket, int] = dict.fromkeys(BUCKETS, 0)
    for term in terms:
        buckets[term.bucket] += term.bytes
    adapters = trainable if job.lora is not None else 0
    return Whiteboard(
        job=job,
        architecture=architecture,
        parameters=architecture.parameter_count + adapters,
        trainable_parameters=trainable,
        terms=terms,
        buckets=buckets,
        peak_bytes=sum(buckets.values()),
    )
