"""Workers of all kinds; Ray is started once, as a cluster of two nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from placewright.workers import open_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.workers import Workers

KINDS = ("threads:1", "threads:2", "processes:1", "processes:2", "ray:auto")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[object]:
    """Two nodes of one CPU each on this machine, to which this process is connected."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module", params=KINDS)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Open workers of one kind, for tests that leave them as they are."""
    if request.param.startswith("ray"):
        request.getfixturevalue("ray_cluster")
    with open_workers(request.param) as opened:
        yield opened
