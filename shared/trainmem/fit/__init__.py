"""What fits a device, what would make a job fit, and what that costs."""

from trainmem.fit.borders import EXAMPLE
from trainmem.fit.family import DEFAULT_FAMILY
from trainmem.fit.floor import Fraction, StepFloor, measured_fraction, step_floor
from trainmem.fit.frontier import Fit, MethodFit, Size, WhatFits, what_fits
from trainmem.fit.limits import Limit, configurations, largest_micro_batch, longest_sequence
from trainmem.fit.methods import METHODS, Method
from trainmem.fit.outcome import Outcome, outcome
from trainmem.fit.plan import Plan, Plans, PlanStep, plans
from trainmem.fit.prices import Price, price
from trainmem.fit.rent import Offer, RentOrOwn, rent_or_own
from trainmem.fit.room import Room, room

__all__ = [
    "DEFAULT_FAMILY",
    "EXAMPLE",
    "METHODS",
    "Fit",
    "Fraction",
    "Limit",
    "Method",
    "MethodFit",
    "Offer",
    "Outcome",
    "Plan",
    "PlanStep",
    "Plans",
    "Price",
    "RentOrOwn",
    "Room",
    "Size",
    "StepFloor",
    "WhatFits",
    "configurations",
    "largest_micro_batch",
    "longest_sequence",
    "measured_fraction",
    "outcome",
    "plans",
    "price",
    "rent_or_own",
    "room",
    "step_floor",
    "what_fits",
]
