"""The ColocRL policy (Mirhoseini et al., 2017)."""
