"""The trace engine: an emulated CUDA device for torch that counts a training step's memory on any machine."""
