"""Measured rows: their schema, what makes one credible, the published ones, and how well predictions met
them."""

from trainmem.results.accuracy import ENGINES, Accuracy, Point, accuracy, points
from trainmem.results.band import Band, band
from trainmem.results.flops import step_flops
from trainmem.results.likeness import Support, error_text, support, typical_error
from trainmem.results.plausible import refusals, throughput_doubt
from trainmem.results.published import (
    Prediction,
    Predictions,
    forget_published_rows,
    predictions,
    published_rows,
    published_rows_where,
)
from trainmem.results.row import (
    KINDS,
    OUTCOMES,
    SCHEMA,
    Kind,
    MeasuredRow,
    Outcome,
    RowError,
    read_row,
    read_rows,
)

__all__ = [
    "ENGINES",
    "KINDS",
    "OUTCOMES",
    "SCHEMA",
    "Accuracy",
    "Band",
    "Kind",
    "MeasuredRow",
    "Outcome",
    "Point",
    "Prediction",
    "Predictions",
    "RowError",
    "Support",
    "accuracy",
    "band",
    "error_text",
    "forget_published_rows",
    "points",
    "predictions",
    "published_rows",
    "published_rows_where",
    "read_row",
    "read_rows",
    "refusals",
    "step_flops",
    "support",
    "throughput_doubt",
    "typical_error",
]
