"""Links between ranks are measured, and join the ranks' machines to one cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import rank_jobs
from rank_processes import run_ranks


def test_measured_links_join_the_machines_of_all_ranks_to_one_cluster():
    limit = 20e6
    links, cluster = run_ranks(rank_jobs.measure_links, 3, limit)[0]
    assert [(link.source, link.target) for link in links] == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    for link in links:  # a busy machine is slower, never faster than the limit
        assert 0 < link.bandwidth < 1.1 * limit
        assert link.latency > 0
    names = [f"host{rank}/node0/cpu" for rank in range(3)]
    assert [device.name for device in cluster.devices] == names
    assert cluster.links[names[1], names[0]].channel == "host1-net"
    assert cluster.links[names[1], names[0]].bandwidth == links[2].bandwidth
