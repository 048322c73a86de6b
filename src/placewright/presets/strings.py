"""A string such as `2x(4xA100-nvlink+cpu)@infiniband` in, a Cluster out.

    cluster = group {"+" group}             devices of one node
            | nodes {"+" nodes}
    nodes   = [count "x"] "(" group {"+" group} ")" ["@" network]
    group   = [count "x"] device ["-" link]

Spaces and the case of names do not matter. Nodes without a network take the next one named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from placewright.cluster import HOST, Cluster, Link
from placewright.errors import ClusterError, nearest
from placewright.presets.catalogue import (
    LinkPreset,
    Preset,
    device_names,
    link_names,
    links,
    names,
)
from placewright.presets.wiring import NOWHERE, Group, Node, slower, wire

MOST = 4096
"""Devices in one cluster; every ordered pair has a link, so more is surely a slip."""

_WORD = re.compile(r"[A-Za-z0-9.-]+")
_DIGITS = re.compile(r"[0-9]+")
_SPACE = re.compile(r"\s*")


def parse(text: str) -> Cluster:
    """The cluster that a string describes."""
    return wire(text.strip(), _Reader(text).cluster())


@dataclass(frozen=True, slots=True)
class _Part:
    """A group, or some equal nodes, as written from character `at` on."""

    at: int
    groups: tuple[Group, ...]
    nodes: int = 0
    network: Link | None = None

    @property
    def devices(self) -> int:
        return max(1, self.nodes) * sum(group.count for group in self.groups)


class _Reader:
    """Reads a cluster string from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def cluster(self) -> list[Node]:
        parts = [self.part()]
        while self.took("+"):
            parts.append(self.part())
        if self.took("@"):
            self.fail("only nodes have a network: write it as in 2x(4xV100)@25GbE", self.at - 1)
        if self.at < len(self.text):
            self.expected("'+' or the end")
        devices = sum(part.devices for part in parts)
        if devices > MOST:
            self.fail(f"{devices} devices, expected at most {MOST}")
        if any(part.nodes for part in parts):
            return self.joined(parts)
        return [Node(tuple(group for part in parts for group in part.groups))]

    def joined(self, parts: list[_Part]) -> list[Node]:
        """The nodes of all parts, each with its network."""
        network: Link | None = None
        nodes: list[Node] = []
        for part in reversed(parts):
            if not part.nodes:
                self.fail("a device beside nodes: put it in parentheses, as a node", part.at)
            network = part.network or network
            if network is None and sum(part.nodes for part in parts) > 1:
                self.expected("'@' and a network, such as 25GbE or infiniband")
            nodes = [Node(part.groups, network or NOWHERE)] * part.nodes + nodes
        return nodes

    def part(self) -> _Part:
        self.skip()
        at, count = self.at, self.count()
        if not self.took("("):
            return _Part(at, (self.group(count),))
        groups = [self.group(self.count())]
        while self.took("+"):
            groups.append(self.group(self.count()))
        if not self.took(")"):
            self.expected("'+' or ')'")
        network = self.network() if self.took("@") else None
        return _Part(at, tuple(groups), count, network)

    def count(self) -> int:
        """The number before an `x`; 1 where there is none."""
        self.skip()
        digits = _DIGITS.match(self.text, self.at)
        if digits is None:
            return 1
        count = int(digits[0][:9])
        if not 1 <= count <= MOST:
            self.fail(f"found {digits[0][:9]!r}, expected a count from 1 to {MOST}")
        self.at = digits.end()
        if not (self.took("x") or self.took("X")):
            self.expected("'x' after a count, as in 2xP100")
        return count

    def group(self, count: int) -> Group:
        preset, link = self.device()
        host = link_names()[preset.link].link
        peer = link_names()[preset.peer].link if preset.peer else None
        if link is None:
            return Group(count, preset, host, peer if preset.kind == HOST else None)
        if link.kind == "pcie":
            return Group(count, preset, slower(host, link.link), None)
        return Group(count, preset, host, slower(peer or link.link, link.link))

    def device(self) -> tuple[Preset, LinkPreset | None]:
        """The preset and the link that a word such as `A100-80GB-nvlink` names."""
        word, at = self.word("a device, such as P100 or cpu")
        known = device_names()
        if word.lower() in known:
            return known[word.lower()], None
        model, _, suffix = word.rpartition("-")
        if model.lower() not in known:
            unknown = model or word
            offer = nearest(unknown, [preset.name for preset in names()])
            self.fail(f"unknown device {unknown!r}: {offer}", at)
        preset = known[model.lower()]
        if suffix.lower().startswith("nvlink") and preset.with_peer:
            preset = known[preset.with_peer.lower()]
        fitting = _fitting(preset)
        if suffix.lower() not in fitting:
            offer = nearest(suffix, [*fitting, *_variants(model)])
            message = f"{model!r} has no link or variant {suffix!r}: {offer}"
            self.fail(message, at + len(model) + 1)
        return preset, fitting[suffix.lower()]

    def network(self) -> Link:
        word, at = self.word("a network, such as 25GbE or infiniband")
        known = {name: link for name, link in link_names().items() if link.kind == "network"}
        if word.lower() not in known:
            offer = nearest(word, [link.name for link in links() if link.kind == "network"])
            self.fail(f"unknown network {word!r}: {offer}", at)
        return known[word.lower()].link

    def word(self, expected: str) -> tuple[str, int]:
        """The next word, and where it stands."""
        self.skip()
        match = _WORD.match(self.text, self.at)
        if match is None:
            self.expected(expected)
        self.at = match.end()
        return match[0], match.start()

    def took(self, character: str) -> bool:
        """Whether that character stands next; it is then behind us."""
        self.skip()
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        return True

    def skip(self) -> None:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at

    def expected(self, what: str) -> NoReturn:
        found = repr(self.text[self.at]) if self.at < len(self.text) else "the end"
        self.fail(f"found {found}, expected {what}")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        character = 1 + (self.at if at is None else at)
        raise ClusterError(f"cluster {self.text!r}, character {character}: {message}")


def _fitting(preset: Preset) -> dict[str, LinkPreset]:
    """The links that a string can ask for between devices of this make."""
    known = link_names()
    if preset.kind == HOST:
        return {name: link for name, link in known.items() if link.kind == "socket"}
    kinds = ("pcie", "nvlink") if preset.peer else ("pcie",)
    own = {"pcie": known[preset.link]} | ({"nvlink": known[preset.peer]} if preset.peer else {})
    return own | {name: link for name, link in known.items() if link.kind in kinds}


def _variants(model: str) -> list[str]:
    """What can follow a model's name and its dash, such as 80GB."""
    words = [word for preset in names() for word in (preset.name, *preset.also)]
    start = f"{model}-".lower()
    return [word[len(start) :] for word in words if word.lower().startswith(start)]
