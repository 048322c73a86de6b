"""Why a plan takes as long as it does, and what would help."""

from placewright.explanations.explanation import Why, explain
from placewright.explanations.moves import Move, Neighbours, neighbours
from placewright.explanations.op_explanation import OneOp, explain_op
from placewright.explanations.what_if import Help

__all__ = [
    "Help",
    "Move",
    "Neighbours",
    "OneOp",
    "Why",
    "explain",
    "explain_op",
    "neighbours",
]
