"""The logical device: where TorchDynamo believes all tensors to be while it traces a model.

A plan spreads a model's weights over devices, and the fake tensors that TorchDynamo traces with
want one device. Inside `trace_on_device` every real tensor becomes a fake tensor of the logical
device, wherever its data are. Guards and graphs still see the real tensors: nothing is wrapped.

This is the second file that uses private APIs of PyTorch: `MetaTensorDescriber.describe_tensor`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_current = threading.local()
_is_installed = False
_install_lock = threading.Lock()


@contextlib.contextmanager
def trace_on_device(device: torch.device) -> Iterator[None]:
    """Let TorchDynamo believe that all tensors are on a device, in this thread."""
    _install()
    previous = getattr(_current, "device", None)
    _current.device = device
    try:
        yield
    finally:
        _current.device = previous


def _install() -> None:
    """Let descriptions of real tensors, of which fake ones are made, name the logical device."""
    global _is_installed
    with _install_lock:
        if _is_installed:
            return
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.meta_utils import MetaTensorDescriber

        describer: Any = MetaTensorDescriber
        describe = describer.describe_tensor

        def describe_tensor(self: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            description = describe(self, tensor, *args, **kwargs)
            device = getattr(_current, "device", None)
            if device is None or isinstance(tensor, FakeTensor) or description.device == device:
                return description
            return dataclasses.replace(description, device=device)

        describer.describe_tensor = describe_tensor
        _is_installed = True
