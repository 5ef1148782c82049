"""What CUDA kernels take besides their results, a family a file, each with its source."""
