"""A model and a plan in, measured times out; and this machine, measured, as a cluster.

What needs PyTorch loads on first use.
"""
