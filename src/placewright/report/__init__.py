"""Results and timelines in, files that a person looks at out."""

from placewright.report.content import Content, gather, rejudged
from placewright.report.learning import Learning
from placewright.report.page import html_page, save_page
from placewright.report.pictures import Picture, plot
from placewright.report.trace import chrome_trace, save_trace

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
