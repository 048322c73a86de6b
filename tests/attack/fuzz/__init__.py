"""Fuzzers, one module per kind of input, each with a function `attempt` of a seed.

An input is accepted, and then used, or refused with a PlacewrightError. Anything else is a finding:
another exception, a crash, 10 seconds of CPU time, or 2 GB more memory.
"""
