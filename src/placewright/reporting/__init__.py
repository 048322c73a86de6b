"""Reports: HTML pages, pictures and traces of results and timelines."""

from placewright.reporting.content import (
    Comparison,
    build_comparison,
    reevaluate,
)
from placewright.reporting.learning_curve import LearningCurve
from placewright.reporting.page import html_page, save_page
from placewright.reporting.pictures import Picture, plot
from placewright.reporting.trace import chrome_trace, save_trace

__all__ = [
    "Comparison",
    "LearningCurve",
    "Picture",
    "build_comparison",
    "chrome_trace",
    "html_page",
    "plot",
    "reevaluate",
    "save_page",
    "save_trace",
]
