"""Parses a cluster string such as `2x(4xA100-nvlink+cpu)@infiniband`.

    cluster = group {"+" group}             devices of one node
            | nodes {"+" nodes}
    nodes   = [count "x"] "(" group {"+" group} ")" ["@" network]
    group   = [count "x"] device
    device  = name {"-" size | "-" link}    a preset, such as M2-Max-64GB or A100-nvlink
            | name "(" figure {"," figure} ")"

Case does not matter, nor do spaces and dashes in names. Nodes without a network take the next one
in the string. `inline_device.py` reads the figures of a device in parentheses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from placewright.device import HOST, MAX_DEVICES, Device, Link
from placewright.errors import ClusterError, nearest
from placewright.presets.catalogue import (
    device_presets,
    device_table,
    link_hint,
    link_presets,
    link_table,
    unknown_device,
)
from placewright.presets.cluster_topology import (
    NO_NETWORK,
    ClusterNode,
    DeviceGroup,
    connect,
    slower_link,
)
from placewright.presets.inline_device import parse_device
from placewright.presets.names import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.presets.preset_types import DevicePreset, LinkPreset

_WORD = re.compile(r"[A-Za-z0-9._-]+")
_WORDS = re.compile(r"[A-Za-z0-9._-]+(?:[ \t]+[A-Za-z0-9._-]+)*")
_PARTS = re.compile(r"[A-Za-z0-9.]+")
_COUNT = re.compile(r"([0-9]+)\s*[xX×]")
_DIGITS = re.compile(r"[0-9]+")
_SIZE = re.compile(r"([0-9]{1,6})gi?b?", re.IGNORECASE)
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
            for part in parts:
                self.check_unified(part.groups, part.position)
            return self.connected_nodes(parts)
        self.check_unified([group for part in parts for group in part.groups], 0)
        return [ClusterNode(tuple(group for part in parts for group in part.groups))]

    def check_unified(self, groups: Sequence[DeviceGroup], position: int) -> None:
        """Refuse devices beside one that shares its memory with its own CPU."""
        unified = next((group.preset for group in groups if group.preset.unified), None)
        if unified is not None and len(groups) > 1:
            self.fail(
                f"{unified.name} shares its memory with its own CPU: leave out the devices beside "
                "it, or make it a node, as in (A100+cpu)+(M2-Max)@10GbE",
                position,
            )

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
        match = _COUNT.match(self.text, self.position)
        if match is None:
            word = _WORDS.match(self.text, self.position)
            digits = _DIGITS.match(self.text, self.position)
            is_name = word and (_known_prefix(word[0]) or (digits and len(digits[0]) > 3))
            if digits and not is_name:
                self.position = digits.end()
                self.skip_space()
                self.fail_expected("'x' after a count, as in 2xP100")
            return 1
        count = int(match[1][:9])
        if not 1 <= count <= MAX_DEVICES:
            self.fail(f"found {match[1][:9]!r}, expected a count from 1 to {MAX_DEVICES}")
        self.position = match.end()
        return count

    def group(self, count: int) -> DeviceGroup:
        start = self.position
        preset, suffix = self.device()
        if preset.unified and count > 1:
            node = self.text[start : self.position].strip()
            self.fail(
                f"{count} {preset.name} in one node: each is a computer, as in "
                f"{count}x({node})@10GbE",
                start,
            )
        host = _link(preset.link).link
        own = _link(preset.peer) if preset.peer else None
        peer = own.link if own else None
        kind = own.kind if own else "nvlink"
        if suffix is None:
            joined = peer if preset.kind == HOST else None
            return DeviceGroup(count, preset, host, joined, kind)
        if suffix.kind == "pcie":
            return DeviceGroup(count, preset, slower_link(host, suffix.link), None)
        if preset.peer_limit and count > preset.peer_limit:
            self.fail(
                f"{count} {preset.name} joined by {suffix.name}: it joins {preset.peer_limit}",
                start,
            )
        return DeviceGroup(count, preset, host, slower_link(peer or suffix.link, suffix.link), kind)

    def device(self) -> tuple[DevicePreset, LinkPreset | None]:
        """The preset that words such as `A100-80GB` name, and the link that follows them."""
        self.skip_space()
        match = _WORDS.match(self.text, self.position)
        if match is None:
            self.fail_expected("a device, such as P100 or cpu")
        start, word = match.start(), match[0]
        after = _SPACE.match(self.text, match.end())
        if after is not None and self.text.startswith("(", after.end()):
            self.position = after.end() + 1
            return self.inline_device(word, start)
        prefix = _known_prefix(word)
        if prefix is None:
            unknown = _without_link(word)
            self.fail(unknown_device(unknown), start)
        preset, length, first = prefix
        self.position = start + length
        suffix: LinkPreset | None = None
        for part in _PARTS.finditer(word, length):
            with_size = _with_size(preset, part[0]) if suffix is None else None
            if with_size is not None:
                preset = with_size
            elif word[length : part.start()].isspace():
                break  # another word: no suffix
            else:
                preset, suffix = self.suffix(preset, first, part[0], start + part.start())
            length = part.end()
            self.position = start + length
        return preset, suffix

    def suffix(
        self, preset: DevicePreset, model: str, word: str, position: int
    ) -> tuple[DevicePreset, LinkPreset]:
        """The link that a suffix names, and the preset that has it."""
        if word.lower().startswith("nvlink") and preset.with_peer:
            preset = find(preset.with_peer, device_table()) or preset
        options = _link_options(preset)
        if word.lower() not in options:
            names = [*options, *_variants(preset, model)]
            is_link = find(word, link_table()) or word.lower() in ("nvlink", "fabric")
            suggestion = nearest("" if is_link else word, names)  # "" resembles none
            self.fail(f"{model!r} has no link or variant {word!r}: {suggestion}", position)
        return preset, options[word.lower()]

    def inline_device(self, name: str, start: int) -> tuple[DevicePreset, LinkPreset | None]:
        """A device whose figures are in parentheses, and its link to others, if they name one."""
        end = self.text.find(")", self.position)
        if end < 0:
            self.position = len(self.text)
            self.fail_expected("')' after the figures of a device")
        figures = [figure.strip() for figure in self.text[self.position : end].split(",")]
        self.position = end + 1
        base = find(name, device_table())
        compact = "".join(name.split())
        try:
            preset = parse_device(base.name if base else compact, figures, base, link_table())
        except ClusterError as error:
            self.fail(str(error), start)
        has_peer = preset.peer and preset.peer != (base.peer if base else "")
        return preset, _link(preset.peer) if has_peer else None

    def network(self) -> Link:
        word, start = self.word("a network, such as 25GbE or infiniband")
        networks = tuple(preset for preset in link_presets() if preset.kind == "network")
        preset = find(word, link_table())
        if preset is None or preset.kind != "network":
            self.fail(f"unknown network {word!r}: {link_hint(word, networks)}", start)
        return preset.link

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


def _link(name: str) -> LinkPreset:
    preset = find(name, link_table())
    assert preset is not None  # presets name links that there are
    return preset


def _known_prefix(word: str) -> tuple[DevicePreset, int, str] | None:
    """The preset that the most parts of a word name, how long they are, and they themselves."""
    ends = [part.end() for part in _PARTS.finditer(word)]
    for end in reversed(ends):
        preset = find(word[:end], device_table())
        if preset is not None:
            return preset, end, word[:end]
    return None


def _without_link(word: str) -> str:
    """A word without a link at its end."""
    head, dash, tail = word.rpartition("-")
    is_link = bool(dash) and (find(tail, link_table()) is not None or tail.lower() == "nvlink")
    return head if is_link else word


def _with_size(preset: DevicePreset, word: str) -> DevicePreset | None:
    """The preset with that much memory; None if there is none. Here a GB is a GiB of chips."""
    match = _SIZE.fullmatch(word)
    size = int(match[1]) * 2**30 if match else 0
    if size and (preset.kind == HOST or size in (preset.memory, *preset.sizes)):
        return preset.with_memory(size)
    return None


def _link_options(preset: DevicePreset) -> dict[str, LinkPreset]:
    """The links that a string can ask for between devices of this model."""
    peer = _link(preset.peer) if preset.peer else None
    if preset.kind == HOST:
        kinds: tuple[str, ...] = ("socket",)
    elif _link(preset.link).kind == "package" and preset.unified:
        kinds = ()
    else:
        kinds = ("pcie", peer.kind) if peer else ("pcie",)
    slot = _link(preset.link)
    options = {"pcie": slot} if "pcie" in kinds and slot.kind == "pcie" else {}
    options |= {peer.kind: peer} if peer and peer.kind in kinds and peer.kind != "socket" else {}
    links = [link for link in link_presets() if link.kind in kinds]
    options |= {link.name.lower(): link for link in links}
    return options | {name.lower(): link for link in links for name in link.also}


def _variants(preset: DevicePreset, model: str) -> list[str]:
    """The suffixes that can follow a model's name and a dash, e.g. 80GB."""
    words = [word for each in device_presets() for word in (each.name, *each.also)]
    start = f"{model}-".lower()
    named = [word[len(start) :] for word in words if word.lower().startswith(start)]
    return [*named, *(f"{size // 2**30}GB" for size in preset.sizes)]
