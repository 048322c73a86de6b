"""CUDA: streams, the thread that issues ops, and CUDA graphs."""
