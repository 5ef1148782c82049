"""The null GPU: PyTorch's own CUDA build on a device that has memory and no processor."""
