"""Models as data: dimensions and parameters of any known family, without torch."""

from trainmem.model.architecture import Architecture, Buffer, Parameter, ParameterKind
from trainmem.model.config import UnknownFamily
from trainmem.model.families import FAMILIES, architecture_of
from trainmem.model.resolve import Resolved, resolve
from trainmem.model.unknown import UNKNOWN

__all__ = [
    "FAMILIES",
    "UNKNOWN",
    "Architecture",
    "Buffer",
    "Parameter",
    "ParameterKind",
    "Resolved",
    "UnknownFamily",
    "architecture_of",
    "resolve",
]
