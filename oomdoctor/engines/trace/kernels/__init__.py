"""CUDA's kernels by family.

The memory that each takes besides its results, and the operators it is made of, with sources.
"""
