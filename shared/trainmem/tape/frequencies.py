"""The frequencies of rotary positions as transformers computes them when it builds a model, in every scaling.

Source: ``compute_default_rope_parameters`` of the model files and ROPE_INIT_FUNCTIONS in
transformers/modeling_rope_utils.py (5.17). Their formulas stand here over vectors that are only sizes: an operator
allocates its result, and a vector is freed when Python drops the last name for it, as it is on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

__all__ = ["inverse_frequencies"]

_SCALAR_BYTES = 8
"""The base of a power is a tensor of its own on the device."""


@lru_cache(maxsize=256)
def inverse_frequencies(rope_type: str, length: int) -> tuple[int, ...]:
    """Allocations and frees on the way to ``length`` fp32 frequencies; the one that is not freed is the result.

    In the allocator's stream format: a positive number of bytes is allocated, ``~n`` frees the n-th allocation.
    Raises `KeyError` for a type that transformers does not have.
    """
    events = _Events()
    result = _FORMULAS[rope_type](events, length)
    made = tuple(events.events)
    del result
    return made


class _Events:
    """What the vectors of one formula allocate and free."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.made = 0

    def allocate(self, size_bytes: int) -> int:
        self.events.append(size_bytes)
        self.made += 1
        return self.made - 1

    def free(self, number: int) -> None:
        self.events.append(~number)


class _Vector:
    """One vector on the device: how many elements, of how many bytes each."""

    def __init__(self, events: _Events, length: int, itemsize: int = 4) -> None:
        self.events, self.length = events, length
        self.number = events.allocate(length * itemsize)

    def __del__(self) -> None:
        self.events.free(self.number)

    def new(self, itemsize: int = 4) -> _Vector:
        """The result of an op on this vector."""
        return _Vector(self.events, self.length, itemsize)

    def __mul__(self, other: float | _Vector) -> _Vector:
        return self.new()

    def __rmul__(self, other: float) -> _Vector:
        return self.new()

    def __truediv__(self, other: float) -> _Vector:
        return self.new()

    def __add__(self, other: _Vector) -> _Vector:
        return self.new()

    def __sub__(self, other: float) -> _Vector:
        return self.new()

    def __rsub__(self, other: float) -> _Vector:
        return self.new()

    def __rtruediv__(self, other: float) -> _Vector:
        """A number divided by a tensor is the tensor's reciprocal times the number (torch/_tensor.py)."""
        reciprocal = self.new()
        return reciprocal * other

    def __rpow__(self, base: float) -> _Vector:
        power = self.new()
        self.events.free(self.events.allocate(_SCALAR_BYTES))
        return power

    def mask(self) -> _Vector:
        """A comparison, or the negation or product of some."""
        return self.new(1)


def _default(events: _Events, length: int) -> _Vector:
    return 1.0 / (10_000.0 ** (_Vector(events, length) / 128))


def _exponents(events: _Events, length: int) -> _Vector:
    """``arange(0, dim, 2)``, counted in int64 and cast, over dim."""
    return _Vector(events, length, 8).new() / 128


def _unscaled(events: _Events, length: int) -> _Vector:
    """Linear and proportional scaling divide it in place; dynamic scaling is in the base."""
    return 1.0 / (10_000.0 ** _exponents(events, length))


def _yarn(events: _Events, length: int) -> _Vector:
    positions = 10_000.0 ** _exponents(events, length)
    extrapolation = 1.0 / positions
    interpolation = 1.0 / (32.0 * positions)
    factor = 1 - _ramp(events, length)
    return interpolation * (1 - factor) + extrapolation * factor


def _ramp(events: _Events, length: int) -> _Vector:
    line = (_Vector(events, length) - 8.0) / 10.0
    clamped = line.new()
    return clamped


def _longrope(events: _Events, length: int) -> _Vector:
    factors = _Vector(events, length)
    exponents = _exponents(events, length)
    return 1.0 / (factors * 10_000.0**exponents)


def _llama3(events: _Events, length: int) -> _Vector:
    frequencies = _unscaled(events, length)
    wavelength = 6.28 / frequencies
    scaled = _where(wavelength.mask(), frequencies / 8.0)
    smooth = (8192 / wavelength - 1.0) / 3.0
    smoothed = (1 - smooth) * scaled / 8.0 + smooth * scaled
    medium = _product(wavelength.mask().mask(), wavelength.mask().mask())
    scaled = _where(medium, smoothed)
    return scaled


def _where(mask: _Vector, chosen: _Vector) -> _Vector:
    return chosen.new()


def _product(mask: _Vector, other: _Vector) -> _Vector:
    return mask.mask()


_FORMULAS: dict[str, Callable[[_Events, int], _Vector]] = {
    "default": _default,
    "linear": _unscaled,
    "dynamic": _unscaled,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _unscaled,
}
