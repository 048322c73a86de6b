"""Problems in, smaller or larger problems out, with the way back."""

from placewright.transforms.contract import FUSIBLE, Contraction, contract
from placewright.transforms.repeat import repeat

__all__ = ["FUSIBLE", "Contraction", "contract", "repeat"]
