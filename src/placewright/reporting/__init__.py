"""Results and timelines in, files that a person looks at out."""

from placewright.reporting.content import (
    Content,
    gather,
    rejudged,
)
from placewright.reporting.learning_curve import Learning
from placewright.reporting.page import html_page, save_page
from placewright.reporting.pictures import Picture, plot
from placewright.reporting.trace import chrome_trace, save_trace

__all__ = [
    "Content",
    "Learning",
    "Picture",
    "chrome_trace",
    "gather",
    "html_page",
    "plot",
    "rejudged",
    "save_page",
    "save_trace",
]
