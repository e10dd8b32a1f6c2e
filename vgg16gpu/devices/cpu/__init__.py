"""The CPU as a device: kernels compiled by a C++ compiler."""
