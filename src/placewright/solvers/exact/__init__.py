"""The best plan there is, by CP-SAT in a process of its own; and windows of larger plans."""
