"""Parses and formats bytes, seconds and shares."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from placewright.errors import ConfigError

MAX_SECONDS = 1e18  # of one op, launch or transfer: 30 billion years, so that sums stay finite
MINUS = "−"
UNLIMITED = 2**60  # bytes: a device that has more counts as having no limit

_BYTES: dict[str, int] = {"b": 1} | {
    f"{letter}{form}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for form, base in (("b", 1000), ("ib", 1024), ("", 1024))
}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # U+00B5, the micro sign
    "μs": Fraction(1, 10**6),  # U+03BC, the Greek letter
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
# Short exponents and few digits, so that no text can mean a number of a million digits.
_AMOUNT = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?)\s*([^\W\d_]*)\s*")


def parse_bytes(text: str) -> int:
    """Bytes in a text like `16 GiB`, `16G` or `500MB`; kB is 1000 bytes, KiB and K are 1024.

    Raises:
        ConfigError: It is not a size, or has no unit: `4` may mean bytes or GiB. Only 0 needs none.
    """
    amount = _AMOUNT.fullmatch(text)
    if amount is not None and not amount[2]:
        if Fraction(amount[1]) == 0:
            return 0
        number = amount[1]
        raise ConfigError(
            f"size {text!r} has no unit: expected such as '{number} GiB' or '{number} MB', or "
            f"'{number} B' for bytes"
        )
    factor = _BYTES.get(amount[2].lower()) if amount else None
    if amount is None or factor is None:
        raise ConfigError(
            f"size {text!r}: expected a number and a unit, such as '16 GiB' or '500 MB'"
        )
    return round(Fraction(amount[1]) * factor)


def parse_seconds(text: str) -> float:
    """Seconds in a text like `30s`, `1.5 h`, `200 us` or `30`.

    Raises:
        ConfigError: It is not a time.
    """
    amount = _AMOUNT.fullmatch(text)
    factor = _SECONDS.get(amount[2] or "s") if amount else None
    if amount is None or factor is None:
        raise ConfigError(f"time {text!r}: expected a number and a unit, such as '30s' or '5 min'")
    return float(Fraction(amount[1]) * factor)


def format_bytes(size: float) -> str:
    """Bytes as text, in powers of 1024: `1.5 GiB`."""
    return _format_scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def format_seconds(seconds: float) -> str:
    """Seconds as text: `20.08 ms`."""
    if not math.isfinite(seconds) or abs(seconds) >= 1:
        return f"{_format_number(seconds)} s"
    return _format_scaled(seconds * 1e9, 1000, ("ns", "µs", "ms", "s"))


def format_percent(share: float, decimal_below: float = 1.0) -> str:
    """A share as a percentage: `3.7 %`, `250 %`; `–` if it is infinite.

    Args:
        decimal_below: Shares from this one on are written without a decimal.
    """
    if share == float("inf"):
        return "–"
    rounded = round(share, 3)  # as printed with a decimal, so that 99.99 % becomes 100 %
    text = f"{share * 100:,.{1 if abs(rounded) < decimal_below else 0}f}"
    return f"{'0.0' if text == '-0.0' else text.replace('-', MINUS)} %"


def format_change(share: float) -> str:
    """A relative change as a percentage with its sign: `+3.72 %`, `−0.40 %`."""
    text = f"{share * 100:+,.2f}"
    return f"{'0.00' if text in ('-0.00', '+0.00') else text.replace('-', MINUS)} %"


def format_rate(per_second: float, noun: str) -> str:
    """A throughput: `36.3 tokens/s`, `12,345 tokens/s`."""
    digits = f"{per_second:,.0f}" if abs(per_second) >= 1000 else _format_number(per_second)
    return f"{digits} {noun}/s"


def _format_scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    *smaller, largest = units
    for unit in smaller:
        if abs(float(f"{value:.4g}")) < base:  # as printed, so that 1023.99 KiB becomes 1 MiB
            return f"{_format_number(value)} {unit}"
        value /= base
    return f"{_format_number(value)} {largest}"


def _format_number(value: float) -> str:
    """Four significant digits, never an exponent."""
    if not math.isfinite(value):
        return str(value)
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
