"""Variants that compute each output by itself."""
