"""Problems in, smaller or larger problems or groups of ops out, with the way back."""

from placewright.transforms.coarsen import by_heavy_edges, heavy_edges
from placewright.transforms.colocate import by_colocation, by_forward, forward_ops
from placewright.transforms.contraction import Contraction, contract
from placewright.transforms.fusible import FUSIBLE, HEAVY, LIGHT, REDUCTION
from placewright.transforms.fusion import (
    dissolved,
    fuse,
    greedy,
)
from placewright.transforms.grouping import Grouping, topological
from placewright.transforms.hierarchy import nested
from placewright.transforms.layer_order import layer_places
from placewright.transforms.modules import by_module, by_module_count
from placewright.transforms.path_lengths import Flow
from placewright.transforms.repeated_blocks import Blocks, fold
from placewright.transforms.unroll_steps import repeat

__all__ = [
    "FUSIBLE",
    "HEAVY",
    "LIGHT",
    "REDUCTION",
    "Blocks",
    "Contraction",
    "Flow",
    "Grouping",
    "by_colocation",
    "by_forward",
    "by_heavy_edges",
    "by_module",
    "by_module_count",
    "contract",
    "dissolved",
    "fold",
    "forward_ops",
    "fuse",
    "greedy",
    "heavy_edges",
    "layer_places",
    "nested",
    "repeat",
    "topological",
]
