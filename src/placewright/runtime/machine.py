"""This machine: processor, cores, memory, GPUs and versions."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import MissingDependency
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.host_allocator import retain_freed_memory
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

PROFILE_VERSION = 10
"""Raised when the meaning of a measurement changes, so that older profiles are ignored."""

_CGROUP = Path("/sys/fs/cgroup")
_CPU_FOLDER = Path("/sys/devices/system/cpu")
_NO_LIMIT = 1 << 60  # a control group without a limit shows more


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine, as PyTorch numbers it.

    Args:
        cache: Bytes of its last cache.
    """

    name: str
    memory: int
    cache: int = 0
    multiprocessors: int = 0


@dataclass(frozen=True)
class Machine:
    """All that a profile depends on.

    Args:
        cores: Cores that this process may use, those of one socket together.
        memory: Bytes of the host.
        cache: Bytes of the host's last cache.
        versions: Versions of libraries, and settings that change the speed of ops.
    """

    processor: str
    cores: tuple[int, ...]
    memory: int
    gpus: tuple[Gpu, ...] = ()
    cache: int = 32 << 20
    versions: Mapping[str, str] | None = None

    @property
    def key(self) -> str:
        """A digest of all of it: a profile is valid while this stays the same."""
        versions = sorted((self.versions or {}).items())
        gpus = [(gpu.name, gpu.memory, gpu.multiprocessors) for gpu in self.gpus]
        content = (
            self.processor,
            self.cores,
            self.memory,
            self.cache,
            gpus,
            versions,
            PROFILE_VERSION,
        )
        return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        cores = f"{len(self.cores)} core{'s' if len(self.cores) > 1 else ''}"
        return ", ".join([f"{self.processor}, {cores}", *(gpu.name for gpu in self.gpus)])

    @property
    def default_workers(self) -> int:
        """One CPU device next to GPUs; without GPUs two, if there is more than one core."""
        return 1 if self.gpus or len(self.cores) == 1 else 2


def this_machine() -> Machine:
    """The machine that this process runs on.

    Raises:
        MissingDependency: PyTorch is not installed.
    """
    torch = load_torch()
    backend = current_backend()
    gpus = tuple(_gpu(backend.properties(index)) for index in range(backend.device_count()))
    return Machine(
        processor=_processor(),
        cores=available_cores(),
        memory=_memory(),
        gpus=gpus,
        cache=last_cache_bytes(),
        versions=_versions(torch, bool(gpus)),
    )


def load_torch() -> Any:
    """Import PyTorch, which only running and measuring need."""
    retain_freed_memory()  # before it starts threads
    try:
        import torch
    except ImportError:
        raise MissingDependency("torch", "torch") from None
    return torch


def _versions(torch: Any, cuda: bool) -> dict[str, str]:
    versions = {
        "placewright": __version__,
        "torch": str(torch.__version__),
        "float32": str(torch.get_float32_matmul_precision()),
        "deterministic": str(bool(torch.are_deterministic_algorithms_enabled())),
        "kernel": platform.release(),
    }
    if cuda:
        driver = _read(Path("/proc/driver/nvidia/version")).partition("\n")[0]
        versions |= {"cuda": str(torch.version.cuda), "driver": driver}
        versions["tf32"] = str(bool(torch.backends.cudnn.allow_tf32))
        versions["benchmark"] = str(bool(torch.backends.cudnn.benchmark))
    return versions


def _gpu(properties: Any) -> Gpu:
    cache = int(getattr(properties, "L2_cache_size", 0))
    return Gpu(
        str(properties.name),
        int(properties.total_memory),
        cache,
        int(properties.multi_processor_count),
    )


def _processor() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine() or "cpu"


def available_cores() -> tuple[int, ...]:
    """The cores of this process, ordered by socket and core, as many as its quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    cores.sort(key=lambda core: (_core_topology(core), core))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdecimal() and period.strip().isdecimal():
        cores = cores[: max(1, -(-int(quota) // int(period)))]
    return tuple(cores)


def _core_topology(core: int) -> tuple[int, int]:
    """The socket and the physical core of a logical core."""
    folder = _CPU_FOLDER / f"cpu{core}" / "topology"
    texts = [_read(folder / name).strip() for name in ("physical_package_id", "core_id")]
    socket, physical = (int(text) if text.isdecimal() else 0 for text in texts)
    return socket, physical


def _memory() -> int:
    """Bytes of the host that this process may use."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        total = 8 << 30  # unknown on this system
    limit = _read(_CGROUP / "memory.max").strip()
    return min(total, int(limit)) if limit.isdecimal() and int(limit) < _NO_LIMIT else total


@cache
def last_cache_bytes() -> int:
    """Bytes of the last-level cache of the first core."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [32 << 20]
    for index in (_CPU_FOLDER / "cpu0" / "cache").glob("index*/size"):
        word = _read(index).strip()
        if word[:-1].isdecimal() and word[-1] in units:
            sizes.append(int(word[:-1]) * units[word[-1]])
    return max(sizes)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
