"""The Python sides of kernels/layout/."""
