"""The Python sides of kernels/conv/."""
