"""The Python sides of kernels/gemm/."""
