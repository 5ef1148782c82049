"""A simulator of PyTorch's CUDA caching allocator: pure Python, no torch, no GPU."""
