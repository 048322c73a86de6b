"""Why a plan takes as long as it does, and what would help."""
