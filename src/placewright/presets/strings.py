"""Parses a cluster string such as `2x(4xA100-nvlink+cpu)@infiniband`.

    cluster = group {"+" group}             devices of one node
            | nodes {"+" nodes}
    nodes   = [count "x"] "(" group {"+" group} ")" ["@" network]
    group   = [count "x"] device ["-" link]

Spaces and case do not matter. Nodes without a network take the next one in the string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from placewright.device import HOST, MAX_DEVICES, Device, Link
from placewright.errors import ClusterError, nearest
from placewright.presets.catalogue import (
    DevicePreset,
    LinkPreset,
    device_presets,
    device_table,
    link_presets,
    link_table,
)
from placewright.presets.cluster_topology import (
    NO_NETWORK,
    ClusterNode,
    DeviceGroup,
    connect,
    slower_link,
)

_WORD = re.compile(r"[A-Za-z0-9.-]+")
_DIGITS = re.compile(r"[0-9]+")
_SPACE = re.compile(r"\s*")


def parse(text: str) -> tuple[tuple[Device, ...], dict[tuple[str, str], Link]]:
    """The devices that a string describes, and a link for every ordered pair of them.

    Raises:
        ClusterError: The string does not follow the grammar, or names an unknown preset.
    """
    return connect(_ClusterParser(text).cluster())


@dataclass(frozen=True, slots=True)
class _ClusterPart:
    """A group, or a number of equal nodes, which begins at character `position`."""

    position: int
    groups: tuple[DeviceGroup, ...]
    nodes: int = 0
    network: Link | None = None

    @property
    def devices(self) -> int:
        return max(1, self.nodes) * sum(group.count for group in self.groups)


class _ClusterParser:
    """Reads a cluster string from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def cluster(self) -> list[ClusterNode]:
        parts = [self.part()]
        while self.accept("+"):
            parts.append(self.part())
        if self.accept("@"):
            self.fail(
                "only nodes have a network: write it as in 2x(4xV100)@25GbE", self.position - 1
            )
        if self.position < len(self.text):
            self.fail_expected("'+' or the end")
        devices = sum(part.devices for part in parts)
        if devices > MAX_DEVICES:
            self.fail(f"{devices} devices, expected at most {MAX_DEVICES}")
        if any(part.nodes for part in parts):
            return self.connected_nodes(parts)
        return [ClusterNode(tuple(group for part in parts for group in part.groups))]

    def connected_nodes(self, parts: list[_ClusterPart]) -> list[ClusterNode]:
        """The nodes of all parts, each with its network."""
        network: Link | None = None
        nodes: list[ClusterNode] = []
        for part in reversed(parts):
            if not part.nodes:
                self.fail("a device beside nodes: put it in parentheses, as a node", part.position)
            network = part.network or network
            if network is None and sum(part.nodes for part in parts) > 1:
                self.fail_expected("'@' and a network, such as 25GbE or infiniband")
            nodes = [ClusterNode(part.groups, network or NO_NETWORK)] * part.nodes + nodes
        return nodes

    def part(self) -> _ClusterPart:
        self.skip_space()
        start, count = self.position, self.count()
        if not self.accept("("):
            return _ClusterPart(start, (self.group(count),))
        groups = [self.group(self.count())]
        while self.accept("+"):
            groups.append(self.group(self.count()))
        if not self.accept(")"):
            self.fail_expected("'+' or ')'")
        network = self.network() if self.accept("@") else None
        return _ClusterPart(start, tuple(groups), count, network)

    def count(self) -> int:
        """The number before an `x`; 1 if there is none."""
        self.skip_space()
        digits = _DIGITS.match(self.text, self.position)
        if digits is None:
            return 1
        count = int(digits[0][:9])
        if not 1 <= count <= MAX_DEVICES:
            self.fail(f"found {digits[0][:9]!r}, expected a count from 1 to {MAX_DEVICES}")
        self.position = digits.end()
        if not (self.accept("x") or self.accept("X")):
            self.fail_expected("'x' after a count, as in 2xP100")
        return count

    def group(self, count: int) -> DeviceGroup:
        preset, link = self.device()
        host = link_table()[preset.link].link
        peer = link_table()[preset.peer].link if preset.peer else None
        if link is None:
            return DeviceGroup(count, preset, host, peer if preset.kind == HOST else None)
        if link.kind == "pcie":
            return DeviceGroup(count, preset, slower_link(host, link.link), None)
        return DeviceGroup(count, preset, host, slower_link(peer or link.link, link.link))

    def device(self) -> tuple[DevicePreset, LinkPreset | None]:
        """The preset and the link that a word such as `A100-80GB-nvlink` names."""
        word, start = self.word("a device, such as P100 or cpu")
        known = device_table()
        if word.lower() in known:
            return known[word.lower()], None
        model, _, suffix = word.rpartition("-")
        if model.lower() not in known:
            unknown = model or word
            suggestion = nearest(unknown, [preset.name for preset in device_presets()])
            self.fail(f"unknown device {unknown!r}: {suggestion}", start)
        preset = known[model.lower()]
        if suffix.lower().startswith("nvlink") and preset.with_peer:
            preset = known[preset.with_peer.lower()]
        options = _link_options(preset)
        if suffix.lower() not in options:
            suggestion = nearest(suffix, [*options, *_variants(model)])
            message = f"{model!r} has no link or variant {suffix!r}: {suggestion}"
            self.fail(message, start + len(model) + 1)
        return preset, options[suffix.lower()]

    def network(self) -> Link:
        word, start = self.word("a network, such as 25GbE or infiniband")
        known = {name: link for name, link in link_table().items() if link.kind == "network"}
        if word.lower() not in known:
            suggestion = nearest(
                word, [link.name for link in link_presets() if link.kind == "network"]
            )
            self.fail(f"unknown network {word!r}: {suggestion}", start)
        return known[word.lower()].link

    def word(self, expected: str) -> tuple[str, int]:
        """The next word, and its position."""
        self.skip_space()
        match = _WORD.match(self.text, self.position)
        if match is None:
            self.fail_expected(expected)
        self.position = match.end()
        return match[0], match.start()

    def accept(self, character: str) -> bool:
        """Whether that character comes next; if so, move past it."""
        self.skip_space()
        if not self.text.startswith(character, self.position):
            return False
        self.position += 1
        return True

    def skip_space(self) -> None:
        space = _SPACE.match(self.text, self.position)
        self.position = space.end() if space else self.position

    def fail_expected(self, what: str) -> NoReturn:
        actual = repr(self.text[self.position]) if self.position < len(self.text) else "the end"
        self.fail(f"found {actual}, expected {what}")

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        character = 1 + (self.position if position is None else position)
        raise ClusterError(f"cluster {self.text!r}, character {character}: {message}")


def _link_options(preset: DevicePreset) -> dict[str, LinkPreset]:
    """The links that a string can ask for between devices of this model."""
    known = link_table()
    if preset.kind == HOST:
        return {name: link for name, link in known.items() if link.kind == "socket"}
    kinds = ("pcie", "nvlink") if preset.peer else ("pcie",)
    defaults = {"pcie": known[preset.link]} | (
        {"nvlink": known[preset.peer]} if preset.peer else {}
    )
    return defaults | {name: link for name, link in known.items() if link.kind in kinds}


def _variants(model: str) -> list[str]:
    """The suffixes that can follow a model's name and a dash, e.g. 80GB."""
    words = [word for preset in device_presets() for word in (preset.name, *preset.also)]
    start = f"{model}-".lower()
    return [word[len(start) :] for word in words if word.lower().startswith(start)]
