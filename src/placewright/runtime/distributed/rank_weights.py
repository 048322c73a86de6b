"""The weights of one rank: those that its devices hold, equal to rank 0's; the others are dropped.

As with `DistributedDataParallel`, rank 0's weights are the model's. A rank that has the same ones
already, which digests tell, receives nothing; so a model may be on `meta` on all ranks but rank 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError
from placewright.runtime.distributed.control_channel import ControlMessage, MessageKind
from placewright.runtime.distributed.rank_digests import tensor_digest
from placewright.runtime.distributed.tensor_frames import frame_bytes, pack_tensor, unpack_tensor
from placewright.runtime.distributed.transport import ConnectionLost
from placewright.runtime.weight_storage import storage_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from placewright.plan import Plan
    from placewright.runtime.distributed.host_ranks import HostRanks
    from placewright.runtime.distributed.session import RankSession

WEIGHT_TAG = 3


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and buffers, under all of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def ranks_of_weights(
    model: torch.nn.Module, plan: Plan, host_ranks: HostRanks
) -> dict[str, frozenset[int]]:
    """The ranks on whose devices the plan places each tensor; none: the plan does not know it."""
    ranks = {
        name: host_ranks.ranks[device]
        for name, device in zip(plan.ops, plan.placement.tolist(), strict=True)
    }
    tensors = named_tensors(model)
    placed: dict[int, set[int]] = {}  # the ranks of each storage
    for name, tensor in tensors.items():
        placed.setdefault(storage_key(tensor), set()).update([ranks[name]] if name in ranks else [])
    return {name: frozenset(placed[storage_key(tensor)]) for name, tensor in tensors.items()}


def foreign_names(
    model: torch.nn.Module, plan: Plan, host_ranks: HostRanks, rank: int
) -> frozenset[str]:
    """The names of tensors that the plan places on devices of other ranks alone."""
    ranks = ranks_of_weights(model, plan, host_ranks)
    return frozenset(name for name, on in ranks.items() if on and rank not in on)


def synchronise_weights(
    session: RankSession, model: torch.nn.Module, foreign: Collection[str]
) -> None:
    """Give every rank the weights of rank 0 that it holds and that differ.

    Args:
        foreign: The names of tensors that this rank does not hold.

    Raises:
        ExecutionError: A model has other tensors than rank 0's, or rank 0's have no data.
    """
    tensors = {name: tensor for name, tensor in named_tensors(model).items() if name not in foreign}
    if session.is_leader:
        tensors = named_tensors(model)
        digests: dict[int, str] = {}
        for peer in session.channels:
            _send_weights(session, peer, tensors, digests)
        return
    description = {
        name: [str(tensor.dtype), list(tensor.shape), tensor_digest(tensor)]
        for name, tensor in tensors.items()
    }
    session.send(0, ControlMessage(MessageKind.READY, data={"weights": description}))
    names = session.reply(0, MessageKind.WEIGHTS).data.get("names", [])
    if not set(names) <= set(tensors):
        raise ExecutionError("rank 0 sends weights that this rank did not ask for")
    values: dict[int, torch.Tensor] = {}
    for index, name in enumerate(names):
        tensor = tensors[name]
        frame = torch.empty(frame_bytes(tensor), dtype=torch.uint8)
        session.transport.receive(frame, 0, WEIGHT_TAG)(session.step_timeout)
        value = unpack_tensor(frame, tensor, 0, (index, 0))
        values[id(tensor)] = value.clone()  # of its own size, without the frame
    replace_tensors(model, values)


def _send_weights(
    session: RankSession, peer: int, tensors: dict[str, torch.Tensor], digests: dict[int, str]
) -> None:
    """Send a rank those of the tensors that it asks for and that differ from its own."""
    theirs: dict[str, Any] = session.reply(peer, MessageKind.READY).data.get("weights", {})
    names, sent = [], set()
    for name, (dtype, shape, digest) in theirs.items():
        mine = tensors.get(name)
        if mine is None or [str(mine.dtype), list(mine.shape)] != [dtype, shape]:
            session.fail(
                ExecutionError(
                    f"rank {peer} has the tensor {name!r} of {dtype} and {shape}, rank 0 "
                    f"{'has none' if mine is None else f'of {mine.dtype} and {list(mine.shape)}'}: "
                    "build the same model on all ranks"
                )
            )
            session.check()
        assert mine is not None
        own_digest = digests.setdefault(id(mine), tensor_digest(mine))
        if not own_digest:
            session.fail(
                ExecutionError(
                    f"{name!r} has no data on rank 0: load the model's weights there, or give "
                    "their file to apply(weights=...) on all ranks"
                )
            )
            session.check()
        if own_digest != digest and id(mine) not in sent:
            names.append(name)
            sent.add(id(mine))
    session.send(peer, ControlMessage(MessageKind.WEIGHTS, data={"names": names}))
    try:
        for index, name in enumerate(names):
            value = tensors[name].detach().cpu()
            session.transport.send(pack_tensor(value, value, 0, (index, 0)), peer, WEIGHT_TAG)
    except ConnectionLost as error:
        session.fail(error)
        session.check()


@torch.no_grad()
def drop_weights(model: torch.nn.Module, foreign: Collection[str]) -> None:
    """Free the data of tensors that other ranks hold; tensors that share memory go on sharing."""
    bases: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    for name, tensor in named_tensors(model).items():
        if name not in foreign or tensor.is_meta:
            continue
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        base = bases.setdefault(
            storage_key(tensor), torch.empty(size, dtype=tensor.dtype, device="meta")
        )
        values[id(tensor)] = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    replace_tensors(model, values)


def replace_tensors(model: torch.nn.Module, values: dict[int, torch.Tensor]) -> None:
    """Replace parameters and buffers, which are known by their identity, under all names."""
    replaced: dict[int, torch.Tensor] = {}
    for module in model.modules():
        tables: list[Any] = [module._parameters, module._buffers]
        for table in tables:
            for name, tensor in table.items():
                if tensor is None or id(tensor) not in values:
                    continue
                if id(tensor) not in replaced:
                    value = values[id(tensor)]
                    if isinstance(tensor, torch.nn.Parameter):
                        value = torch.nn.Parameter(value, tensor.requires_grad)
                    replaced[id(tensor)] = value
                table[name] = replaced[id(tensor)]
