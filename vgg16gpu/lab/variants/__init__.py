"""The kernels of the lab, a module for each file in kernels/lab. A module's `VARIANTS` is all that is known of it."""
