"""Transforms: group, coarsen, contract, fuse, join and unroll problems, with the way back."""

from placewright.transforms.cell_calls import by_cell_calls, network_cells
from placewright.transforms.coarsen import by_heavy_edges, merge_heavy_edges
from placewright.transforms.colocate import by_colocation, by_forward, forward_ops
from placewright.transforms.contraction import Contraction, contract
from placewright.transforms.fusible import FUSIBLE, HEAVY, LIGHT, REDUCTION
from placewright.transforms.fusion import (
    dissolve_groups,
    fuse,
    fuse_greedily,
)
from placewright.transforms.grouping import Grouping, topological_positions
from placewright.transforms.hierarchy import nested_groupings
from placewright.transforms.joint_problem import JointProblem, join_calls
from placewright.transforms.layer_order import layer_positions
from placewright.transforms.modules import by_module, by_module_count
from placewright.transforms.path_lengths import PathLengths
from placewright.transforms.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from placewright.transforms.unroll_steps import unroll
from placewright.transforms.wiring import wiring_fingerprint

__all__ = [
    "FUSIBLE",
    "HEAVY",
    "LIGHT",
    "REDUCTION",
    "Contraction",
    "Grouping",
    "JointProblem",
    "PathLengths",
    "RepeatedBlocks",
    "by_cell_calls",
    "by_colocation",
    "by_forward",
    "by_heavy_edges",
    "by_module",
    "by_module_count",
    "contract",
    "dissolve_groups",
    "find_repeated_blocks",
    "forward_ops",
    "fuse",
    "fuse_greedily",
    "join_calls",
    "layer_positions",
    "merge_heavy_edges",
    "nested_groupings",
    "network_cells",
    "topological_positions",
    "unroll",
    "wiring_fingerprint",
]
