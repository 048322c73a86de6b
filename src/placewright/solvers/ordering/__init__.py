"""Issue orders for a fixed placement: priority rules, and a search over orders."""
