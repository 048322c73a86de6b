"""Panels of options in the help of commands."""

PROBLEM = "Problem"
CONSTRAINTS = "Constraints"
SEARCH = "Search"
RUN = "Run"
OUTPUT = "Output"
GENERAL = "General"
PANELS = (PROBLEM, CONSTRAINTS, SEARCH, RUN, OUTPUT, GENERAL)
"""Panels of options in the order of the help; an option without one is in the last."""
