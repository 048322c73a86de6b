"""Reads PyTorch models through torch.export."""
