"""The hierarchical policy (Mirhoseini et al., 2018)."""
