"""Text and numbers: sizes and times as a person writes and reads them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.errors import ConfigError
from placewright.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("7B", 7),
        ("8GiB", 8 * 1024**3),
        (" 16 GiB ", 16 * 1024**3),
        ("1.5 gib", 3 * 1024**3 // 2),
        ("500MB", 500 * 1000**2),
        ("500 MiB", 500 * 1024**2),
        ("2kB", 2000),
        ("2KB", 2000),
        ("2KiB", 2048),
        ("1TB", 1000**4),
        ("1TiB", 1024**4),
        ("2PiB", 2 * 1024**5),
        ("8G", 8 * 1024**3),  # as it is meant by those who write it so
        ("8 g", 8 * 1024**3),
        ("2K", 2048),
        ("1e9B", 1_000_000_000),
        ("9007199254740993B", 2**53 + 1),  # exact, where a float would round
        ("0.5B", 0),
        ("8.B", 8),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "8 GiBs", "-1", "-1GiB", "nan", "inf", "1e999", "1,5 GiB", "8 G iB", "٣"],
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    message = f"size {text!r}: expected a number and a unit, such as '16 GiB' or '500 MB'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["4", "4096", "0.5", " 8. ", "1e9"])
def test_a_size_without_a_unit_is_refused_with_the_remedy(text: str) -> None:
    amount = text.strip()
    message = f"size {text!r} has no unit: expected such as '{amount} GiB'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("30", 30.0),
        ("0.5 s", 0.5),
        ("5 min", 300.0),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("200 ms", 0.2),
        ("20us", 2e-5),
        ("20 µs", 2e-5),
        ("20 μs", 2e-5),
        ("7ns", 7e-9),
    ],
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-3s", "3 days", "nan", "inf", "1e400s", "1:30", "30S"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    message = f"time {text!r}: expected a number and a unit, such as '30s' or '5 min'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1024 * 1024 - 1, "1 MiB"),  # 1023.999 KiB, which no one wants to read
        (3 * 2**29, "1.5 GiB"),
        (-3 * 2**29, "-1.5 GiB"),
        (12_345_678, "11.77 MiB"),
        (5000 * 2**50, "5000 PiB"),
    ],
)
def test_a_size_is_shown_in_powers_of_1024(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"),
        (3e-9, "3 ns"),
        (1.5e-6, "1.5 µs"),
        (0.020084, "20.08 ms"),
        (0.9999, "999.9 ms"),
        (0.99999, "1 s"),
        (1.0, "1 s"),
        (1234.56, "1235 s"),
        (86400.0, "86400 s"),
        (math.inf, "inf s"),
    ],
)
def test_a_time_is_shown_with_four_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(0, 2**62))
def test_a_size_reads_back_as_it_was_shown_to_four_digits(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=1e-3)


@given(st.floats(1e-9, 1e9))
def test_a_time_reads_back_as_it_was_shown_to_four_digits(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=1e-3)
