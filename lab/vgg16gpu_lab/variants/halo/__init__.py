"""Variants with tiles that overlap."""
