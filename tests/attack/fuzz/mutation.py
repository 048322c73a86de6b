"""Mutates plain data, texts and protobuf messages, all drawn from a seeded generator."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

ODD_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 0.5, -0.0, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**25, 10**400,
    1e-320, 1e-9, 1e9, 1e15, 1.7e308, float("inf"), float("nan"),
)  # fmt: skip
ODD_TEXTS = (
    "", "inf", "nan", "16 GiB", "gpu0", "cpu", "*", "P100", "\ud800", "a\nb", "\x1b[2J", "\0",
    "../x", "<script>", "x" * 300, "roofline", "op", "weight", "view", "input", "ready", "period",
)  # fmt: skip


def odd_value(rng: Random) -> Any:
    """A value that a reader may not expect."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(ODD_NUMBERS)
    if kind < 5:
        return rng.choice(ODD_TEXTS)
    return rng.choice((None, True, False, [], {}, [[]], [{}], {"a": 1}, [0, 0], [1, "a"], [0] * 40))


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside some data."""
    found = []
    pending = [data]
    while pending:
        value = pending.pop()
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            if isinstance(value[key], dict | list):
                pending.append(value[key])
    return found


def mutate_data(data: Any, rng: Random, edits: int) -> Any:
    """A copy of some JSON data with a few edits deep inside."""
    data = copy.deepcopy(data)
    for _ in range(edits):
        known = places(data)
        if not known:
            return data
        parent, key = rng.choice(known)
        value = parent[key]
        match rng.randrange(12):
            case 0:
                del parent[key]
            case 1 | 2:
                parent[key] = odd_value(rng)
            case 3 | 4 | 5:
                parent[key] = _near(value, rng)
            case 6 | 7:  # the value of another place, of the same type if there is one
                other, at = rng.choice(known)
                alike = [p for p in known if type(p[0][p[1]]) is type(value)]
                if rng.random() < 0.8 and alike:
                    other, at = rng.choice(alike)
                parent[key] = copy.deepcopy(other[at])
            case 8 if isinstance(parent, list):
                parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
            case 9 if isinstance(parent, list):
                rng.shuffle(parent)
            case 10 if isinstance(parent, dict):
                parent[rng.choice((f"{key}s", "kind", "name", "version", ""))] = parent.pop(key)
            case _:
                parent[key] = _near(value, rng)
    return data


def _near(value: Any, rng: Random) -> Any:
    """A value of the same type that is not far from this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 2, -value, value, 10))
    if isinstance(value, float):
        return value * rng.choice((0.0, 0.5, 2.0, 1e3, -1.0, 1.0 + 1e-9))
    if isinstance(value, str):
        return mutate_text(value, rng)
    if isinstance(value, list):
        return value[: rng.randrange(len(value) + 1)] or value * 2
    if isinstance(value, dict):
        keep = rng.randrange(len(value) + 1)
        return dict(list(value.items())[:keep])
    return value


def mutate_text(text: str, rng: Random) -> str:
    """A text with a character or a part changed."""
    at = rng.randrange(len(text) + 1)
    match rng.randrange(6):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + rng.choice("x0+-.=,:@()[]{}*/ \n\"'éµ\x1b") + text[at:]
        case 2:
            return text[:at] + rng.choice(ODD_TEXTS) + text[at:]
        case 3:
            return text[at:] + text[:at]
        case 4:
            return text + text[:at]
        case _:
            return rng.choice(ODD_TEXTS)


def mutate_message(message: Any, rng: Random, edits: int) -> None:
    """Edit fields deep inside a protobuf message."""
    for _ in range(edits):
        messages = [message]
        for at in messages:  # grows
            for field, value in at.ListFields():
                if field.type == field.TYPE_MESSAGE:
                    messages += _items(value)
        target = rng.choice(messages)
        if not target.ListFields() or rng.random() < 0.05:
            _set_any(target, rng)
            continue
        field, value = rng.choice(target.ListFields())
        if hasattr(value, "append") or hasattr(value, "add"):
            _edit_repeated(target, field, value, rng, messages)
        elif hasattr(value, "keys"):
            key = rng.choice(list(value.keys()))
            if rng.random() < 0.5:
                del value[key]
            elif field.message_type.fields_by_name["value"].type == field.TYPE_MESSAGE:
                others = [at for at in messages if at.DESCRIPTOR is value[key].DESCRIPTOR]
                value[key].CopyFrom(copy.deepcopy(rng.choice(others)))
            else:
                value[key] = rng.choice([*value.values(), rng.choice(ODD_TEXTS[:5])])
        elif field.type == field.TYPE_MESSAGE:
            others = [at for at in messages if at.DESCRIPTOR is value.DESCRIPTOR]
            if rng.random() < 0.3:
                target.ClearField(field.name)
            else:
                value.CopyFrom(copy.deepcopy(rng.choice(others)))
        else:
            setattr(target, field.name, _scalar(field, value, rng))


def _items(value: Any) -> list[Any]:
    if hasattr(value, "keys"):
        return [item for item in value.values() if hasattr(item, "ListFields")]
    return list(value) if hasattr(value, "__len__") else [value]


def _edit_repeated(target: Any, field: Any, value: Any, rng: Random, messages: list[Any]) -> None:
    at = rng.randrange(len(value))
    match rng.randrange(5):
        case 0:
            del value[at]
        case 1:
            value.extend([copy.deepcopy(value[at])])
        case 2 if len(value) > 1:
            kept = [copy.deepcopy(item) for item in value]
            rng.shuffle(kept)
            del value[:]
            value.extend(kept)
        case _ if field.type == field.TYPE_MESSAGE:
            others = [one for one in messages if one.DESCRIPTOR is value[at].DESCRIPTOR]
            value[at].CopyFrom(copy.deepcopy(rng.choice(others)))
        case _:
            value[at] = _scalar(field, value[at], rng)


def _scalar(field: Any, value: Any, rng: Random) -> Any:
    """Another value that the field's type can hold."""
    if field.type == field.TYPE_ENUM:
        return rng.choice([number.number for number in field.enum_type.values])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        signed = field.type in (field.TYPE_INT32, field.TYPE_INT64, field.TYPE_SINT64)
        bits = 63 if field.type in (field.TYPE_INT64, field.TYPE_UINT64, field.TYPE_SINT64) else 31
        options = (value + 1, value * 2, 0, 1, 7, 2**20, 2**bits - 1, -1 if signed else 2)
        chosen = rng.choice(options)
        return chosen if -(2**bits) <= chosen < 2**bits else 3
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, value * 2, 1e30, float("nan"), float("inf")))
    if isinstance(value, bytes):
        return rng.choice((b"", value[:-1], value + b"\xff", value * 2, b"\0" * 8))
    texts = ("", f"{value}_", value[:-1], "x", "a\nb", "\x1b[2J", "y:0", "^x", "../x", "x" * 300)
    return rng.choice(texts)


def _set_any(target: Any, rng: Random) -> None:
    """Set a field that the message does not have."""
    field = rng.choice(target.DESCRIPTOR.fields)
    is_list = isinstance(getattr(target, field.name), list) or hasattr(
        getattr(target, field.name), "append"
    )
    if field.type == field.TYPE_MESSAGE:
        if hasattr(getattr(target, field.name), "add"):
            getattr(target, field.name).add()
        elif hasattr(getattr(target, field.name), "SetInParent"):
            getattr(target, field.name).SetInParent()
    elif is_list:
        getattr(target, field.name).append(
            _scalar(field, field.default_value or _empty(field), rng)
        )
    else:
        setattr(target, field.name, _scalar(field, getattr(target, field.name), rng))


def _empty(field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return ""
    if field.type == field.TYPE_BYTES:
        return b""
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return 0.0
    return False if field.type == field.TYPE_BOOL else 0
