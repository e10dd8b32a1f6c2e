"""The Python sides of kernels/general/."""
