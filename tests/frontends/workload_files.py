"""Small workloads in the formats of the public files: dnn-partitioning, a split, a profile."""

from __future__ import annotations


def node(identity, time, colour=None, **more):
    """A node ten times slower on a CPU, of 100 bytes."""
    entry = {"id": identity, "name": f"layer{identity}", "fpgaLatency": time}
    entry |= {"cpuLatency": 10 * time, "supportedOnFpga": 1, "isBackwardNode": 0, "size": 100.0}
    return entry | ({} if colour is None else {"colorClass": colour}) | more


def edge(source, target, cost):
    return {"sourceId": source, "destId": target, "cost": cost, "size": 4.0}


# 1 -> 2 -> 3 and back again: 13 -> 12 -> 11; a backward node shares its forward node's class.
TRAINING = {
    "maxSizePerFPGA": 1000.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        node(3, 3.0, colour=3),
        node(11, 1.5, colour=1, isBackwardNode=1),
        node(1, 1.0, colour=1),
        node(12, 4.0, colour=2, isBackwardNode=1),
        node(2, 2.0, colour=2),
        node(13, 6.0, colour=3, isBackwardNode=1),
    ],
    "edges": [
        edge(12, 11, 0.25),
        edge(2, 3, 0.5),
        edge(1, 2, 0.25),
        edge(13, 12, 0.5),
        edge(3, 13, 0.125),
    ],
}
SPLIT = {"fpgas": [{"nodes": [1, 2]}, {"nodes": [3]}], "cpus": [{"nodes": []}]}

PROFILE = """\
node4 -- Linear(in_features=8) -- forward_compute_time=3.000, backward_compute_time=5.000, \
activation_size=40.0, parameter_size=300.000
node1 -- Input -- forward_compute_time=635.902, backward_compute_time=0.000, \
activation_size=16.000, parameter_size=0.000
node2 -- LSTM(8, 8) -- forward_compute_time=1.000, backward_compute_time=2.000, \
activation_size=[20.0; 8.0; 4.0], parameter_size=100.000
node3 -- View(-1) -- forward_compute_time=0.500, backward_compute_time=0.250, \
activation_size=24.0, parameter_size=0.000
\tnode3 -- node4
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
"""
