"""Operators whose CUDA kernels are made up of other operators, below autograd; each module has those of one kind."""
