"""Problems in, smaller or larger problems or groups of ops out, with the way back."""

from placewright.transforms.coarsen import by_heavy_edges, heavy_edges
from placewright.transforms.colocate import by_colocation, by_forward, forward_ops
from placewright.transforms.contract import Contraction, contract
from placewright.transforms.flow import Flow
from placewright.transforms.fold import Blocks, fold
from placewright.transforms.fuse import dissolved, fuse, greedy
from placewright.transforms.fusible import FUSIBLE, HEAVY, LIGHT, REDUCTION
from placewright.transforms.grouping import Grouping, topological
from placewright.transforms.layers import layer_places
from placewright.transforms.modules import by_module, by_module_count
from placewright.transforms.nest import nested
from placewright.transforms.repeat import repeat

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
