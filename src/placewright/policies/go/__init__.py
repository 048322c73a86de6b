"""The GO policy (Zhou et al., 2020)."""
