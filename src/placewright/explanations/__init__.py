"""Explanations: why a plan takes as long as it does, and what would help."""

from placewright.explanations.explanation import Explanation, explain, explain_best
from placewright.explanations.memory_fit import MemoryFit, MemoryUse, fits
from placewright.explanations.moves import Neighbours, OpMove, neighbours
from placewright.explanations.op_explanation import OpExplanation, explain_op
from placewright.explanations.what_if import Improvement

__all__ = [
    "Explanation",
    "Improvement",
    "MemoryFit",
    "MemoryUse",
    "Neighbours",
    "OpExplanation",
    "OpMove",
    "explain",
    "explain_best",
    "explain_op",
    "fits",
    "neighbours",
]
