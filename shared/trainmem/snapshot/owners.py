"""Memory that outlives a step: weights and their masters, gradients, state, workspaces, told apart by their sizes."""

from __future__ import annotations

from collections import Counter

from trainmem.snapshot.case import Case, Index, Kind
from trainmem.units import MIB

__all__ = ["WORKSPACE_BYTES", "count_weights", "settle_owners"]

WORKSPACE_BYTES = frozenset(
    # cuBLAS: 32 MiB on Hopper and newer, 8,519,680 bytes before; cuBLASLt: 1 MiB, or 4 KiB times its setting.
    {32 * MIB, 8_519_680, 8_388_608, 16_777_216, 4 * MIB, 1 * MIB}
)
_MOST_INPUTS = 6
_NEARLY_ALL = 0.9
_LEAST_WEIGHTS = 8
_MOST_RUNS_TRIED = 50


def settle_owners(case: Case) -> None:
    """Decide everything that is not of the moment."""
    count_weights(case)
    _settle_gradients(case)
    _settle_setup(case)
    _settle_before(case)
    _settle_kept_from_forward(case)
    count_weights(case)


def count_weights(case: Case) -> None:
    """Count the weights by size; as long as there are none, what may turn out to be one."""
    requested = case.blocks.requested
    case.weights = Counter(
        requested[number] for number, bucket in enumerate(case.bucket_of) if bucket == Index.WEIGHTS
    )
    if case.weights:
        return
    case.weights = Counter(
        requested[number] for kind in (Kind.KEPT_FROM_SETUP, Kind.BEFORE) for number in case.by_kind[kind]
    )
    for size in WORKSPACE_BYTES & case.weights.keys():
        # A model has a weight of one size in every layer, a process one workspace for each stream.
        if case.weights[size] <= 2:
            del case.weights[size]


def _settle_gradients(case: Case) -> None:
    """What backward leaves behind is gradients, as many of a size as there are weights; or a workspace."""
    blocks, bucket_of, weights = case.blocks, case.bucket_of, case.weights
    known = {part for size in weights for part in (size, 2 * size, size // 2)}
    taken: Counter[tuple[int, int]] = Counter()
    # From the end, because a workspace comes with the first product of matrices and gradients after it.
    for number in reversed(case.by_kind[Kind.KEPT_FROM_BACKWARD]):
        size, span = blocks.requested[number], case.span_starts[number]
        if size in WORKSPACE_BYTES and taken[span, size] >= weights[size]:
            bucket_of[number] = Index.WORKSPACE
        elif size in known or case.span_ends[number] != case.never:
            taken[span, size] += 1
            bucket_of[number] = Index.GRADIENTS
        elif case.is_last(span):
            bucket_of[number] = Kind.BACKWARD_TEMPORARY
            case.by_kind[Kind.BACKWARD_TEMPORARY].append(number)
        else:
            bucket_of[number] = Index.GRADIENTS
    case.by_kind[Kind.BACKWARD_TEMPORARY].sort()


def _settle_setup(case: Case) -> None:
    """Tensors made by the program itself before the first step: weights, their masters, or inputs."""
    blocks, bucket_of = case.blocks, case.bucket_of
    kept = case.by_kind[Kind.KEPT_FROM_SETUP]
    gradients = {
        blocks.requested[number]
        for number in case.by_kind[Kind.KEPT_FROM_BACKWARD]
        if bucket_of[number] == Index.GRADIENTS
    }
    built = Counter(
        blocks.requested[number] for number, bucket in enumerate(bucket_of) if bucket == Index.WEIGHTS
    )
    # A batch is a few tensors; what comes in larger numbers was loaded by code that is not known here.
    many = sum(blocks.requested[number] >= MIB for number in kept) > _MOST_INPUTS
    sizes = [blocks.requested[number] for number in kept]
    masters = _masters(Counter(sizes), built) if built else _masters_in_order(sizes)
    for number in kept:
        size = blocks.requested[number]
        if masters[size] > 0:
            masters[size] -= 1
            bucket_of[number] = Index.MASTER
        elif not built and size in WORKSPACE_BYTES and gradients and size not in gradients:
            bucket_of[number] = Index.WORKSPACE
        elif size in gradients or not built or (size >= MIB and many):
            bucket_of[number] = Index.WEIGHTS
        else:
            bucket_of[number] = Index.ACTIVATIONS


def _masters(kept: Counter[int], weights: Counter[int]) -> Counter[int]:
    """fp32 copies of 16-bit weights, by size: twice as large as the weights, and one for nearly all of them."""
    doubled = Counter({2 * size: count for size, count in weights.items()})
    found = doubled & kept
    whole = sum(size * count for size, count in doubled.items())
    matched = sum(size * count for size, count in found.items())
    return found if matched >= _NEARLY_ALL * whole > 0 else Counter()


def _masters_in_order(sizes: list[int]) -> Counter[int]:
    """The same without stacks to go by: a run of blocks that repeats the run before it at twice the size."""
    tried = 0
    for count in range(1, len(sizes) // 2 + 1):
        if sizes[count] == 2 * sizes[0]:
            tried += 1
            matched = [
                second for first, second in zip(sizes, sizes[count:], strict=False) if second == 2 * first
            ]
            if len(matched) >= max(_NEARLY_ALL * count, _LEAST_WEIGHTS):
                return Counter(matched)
            if tried == _MOST_RUNS_TRIED:
                break
    return Counter()


def _settle_before(case: Case) -> None:
    """Blocks from before the recording with no stack: one of each gradient's size is a weight, two are state.

    Without gradients to compare with, all of them count as weights.
    """
    blocks, bucket_of = case.blocks, case.bucket_of
    gradients = [number for number, bucket in enumerate(bucket_of) if bucket == Index.GRADIENTS]
    trainable: Counter[int] = Counter()
    if gradients:
        # Each backward pass makes one gradient for each trainable weight; take the pass with the most. A
        # recording that began in the middle of one has part of its gradients from before.
        passes: dict[int, Counter[int]] = {}
        for number in gradients:
            passes.setdefault(max(case.span_starts[number], 0), Counter())[blocks.requested[number]] += 1
        trainable = max(passes.values(), key=lambda sizes: sum(sizes.values()))
    taken: Counter[int] = Counter()
    for number in case.by_kind[Kind.BEFORE]:
        size = blocks.requested[number]
        taken[size] += 1
        if size in WORKSPACE_BYTES and taken[size] > 3 * trainable[size] and trainable:
            bucket_of[number] = Index.WORKSPACE
        elif trainable[size] and trainable[size] < taken[size] <= 3 * trainable[size]:
            bucket_of[number] = Index.STATE
        else:
            bucket_of[number] = Index.WEIGHTS


def _settle_kept_from_forward(case: Case) -> None:
    """What outlives the step whose forward made it, and what was there when the program failed."""
    blocks, bucket_of = case.blocks, case.bucket_of
    for number in case.by_kind[Kind.KEPT_FROM_FORWARD]:
        is_workspace = blocks.requested[number] in WORKSPACE_BYTES
        bucket_of[number] = Index.WORKSPACE if is_workspace else Index.ACTIVATIONS
    for number in case.by_kind[Kind.CUT_OFF]:
        # What even the failing program did not let go of is a library's.
        stays = blocks.end[number] == len(case.trace) and case.failed
        is_workspace = stays and blocks.requested[number] in WORKSPACE_BYTES
        bucket_of[number] = Index.WORKSPACE if is_workspace else Kind.SAVED
        if not is_workspace:
            case.by_kind[Kind.SAVED].append(number)
