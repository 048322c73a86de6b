"""Reads JAX functions through their jaxpr."""
