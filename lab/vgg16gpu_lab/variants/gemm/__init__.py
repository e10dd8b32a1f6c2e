"""Variants that write windows as a matrix and multiply."""
