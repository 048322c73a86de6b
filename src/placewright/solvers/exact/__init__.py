"""The exact solver: the best plan by CP-SAT in a child process, and windows of larger plans."""
