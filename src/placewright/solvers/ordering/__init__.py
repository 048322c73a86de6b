"""Orders of ops for a placement: priority rules, and a search among them."""
