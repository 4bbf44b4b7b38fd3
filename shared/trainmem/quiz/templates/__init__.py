"""Every question template, by topic."""

from trainmem.quiz.draw import Template
from trainmem.quiz.templates import (
    activations,
    adapters,
    buckets,
    design,
    levers,
    measuring,
    mistakes,
    sharding,
    spoken,
    states,
    steps,
    timelines,
)

__all__ = ["TEMPLATES", "by_name"]

TEMPLATES: tuple[Template, ...] = (
    *states.TEMPLATES,
    *buckets.TEMPLATES,
    *activations.TEMPLATES,
    *steps.TEMPLATES,
    *levers.TEMPLATES,
    *sharding.TEMPLATES,
    *adapters.TEMPLATES,
    *measuring.TEMPLATES,
    *timelines.TEMPLATES,
    *mistakes.TEMPLATES,
    *design.TEMPLATES,
    *spoken.TEMPLATES,
)

_BY_NAME = {template.name: template for template in TEMPLATES}


def by_name(name: str) -> Template:
    """The template of this name. Raises ``ValueError`` for any other."""
    if name not in _BY_NAME:
        raise ValueError(f"question: {name!r} is not a template")
    return _BY_NAME[name]
