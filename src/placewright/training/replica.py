"""A policy as plain data, from which another thread or process makes an equal one.

Weights travel as safetensors, never as pickled modules. A thread keeps its last policy, so that
what a policy caches about a problem is computed once.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest
from placewright.policies import POLICIES, find_policy
from placewright.policies.tensor_files import tensors_from_bytes, tensors_to_bytes
from placewright.training.clock import SimulatorClock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.policies import Policy
    from placewright.problem import Problem

_thread_state = threading.local()


@dataclass(frozen=True)
class PolicyReplica:
    """A policy's name, settings and weights.

    Args:
        config: Its `to_config`, as JSON.
        weights: Its `state_dict`, as the bytes of a safetensors file.
    """

    name: str
    config: str
    weights: bytes = field(repr=False)

    @classmethod
    def of(cls, policy: Policy) -> PolicyReplica:
        """The policy as it is now.

        Raises:
            ConfigError: It is none that the library makes by its name.
        """
        if policy.name not in POLICIES or type(policy) is not find_policy(policy.name):
            raise ConfigError(
                f"workers make policies by name, and {type(policy).__name__} is none of them: "
                f"{nearest(policy.name, POLICIES)}; train it without workers"
            )
        weights = tensors_to_bytes(policy.state_dict())
        return cls(policy.name, json.dumps(policy.to_config(), sort_keys=True), weights)

    def build(self) -> tuple[Policy, SimulationCounter]:
        """The policy on the CPU and its clock; this thread's last one if only weights differ."""
        import torch

        if torch.get_num_threads() != 1:  # a worker's process; more threads, other roundings
            torch.set_num_threads(1)
        key = self.name, self.config
        if getattr(_thread_state, "key", None) != key:
            with torch.random.fork_rng(devices=[]):
                policy: Policy = find_policy(self.name).from_config(json.loads(self.config))
            counter = SimulationCounter()
            policy.use_clock(counter)
            _thread_state.key, _thread_state.policy = key, (policy, counter)
        policy, counter = _thread_state.policy
        policy.load_state_dict(tensors_from_bytes(self.weights))
        counter.plans = 0
        return policy, counter


class SimulationCounter(SimulatorClock):
    """A clock that counts the plans whose op starts it has simulated."""

    def __init__(self) -> None:
        self.plans = 0

    def op_starts(self, problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        self.plans += len(placements)
        return super().op_starts(problem, placements)
