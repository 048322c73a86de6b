"""The Placeto policy (Addanki et al., 2019)."""
