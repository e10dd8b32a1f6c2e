"""Measure how fast a server answers over HTTP, and how long its clients wait."""
