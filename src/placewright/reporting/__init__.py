"""Reports: HTML pages, pictures and traces of results and timelines."""

from placewright.reporting.content import PageContent
from placewright.reporting.learning_curve import LearningCurve
from placewright.reporting.page import Page, html_page, report, save_page
from placewright.reporting.pictures import Picture, plot
from placewright.reporting.trace import chrome_trace, save_trace

__all__ = [
    "LearningCurve",
    "Page",
    "PageContent",
    "Picture",
    "chrome_trace",
    "html_page",
    "plot",
    "report",
    "save_page",
    "save_trace",
]
