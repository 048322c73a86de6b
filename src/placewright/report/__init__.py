"""Results and timelines in, files that a person looks at out."""

from placewright.report.trace import chrome_trace, save_trace

__all__ = ["chrome_trace", "save_trace"]
