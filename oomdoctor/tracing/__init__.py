"""An emulated CUDA device for torch, with which a training step's memory can be told on any machine."""
