"""Read and summarise a memory snapshot of PyTorch."""
