"""Policies that serve any graph and cluster: linear, and a graph neural network."""
