"""The command of the standing attack takes the names of parts, long or short."""

from __future__ import annotations

import pytest
from attack.__main__ import PARTS, part_name


def test_a_part_is_found_by_its_name_without_the_package():
    assert part_name("fuzz.files") == part_name("attack.fuzz.files") == "attack.fuzz.files"
    assert [part_name(name.removeprefix("attack.")) for name in PARTS] == list(PARTS)


def test_an_unknown_part_is_refused_with_the_names_of_all():
    with pytest.raises(SystemExit, match=r"part 'fuzz.file' is unknown: expected one of .*kills"):
        part_name("fuzz.file")
