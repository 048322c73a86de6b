"""Benchmarks by claim: `python -m benchmarks.FOLDER.SCRIPT --help`, from the root of a checkout."""
