"""Measurements: how long a model takes, where the time goes, and how others do in turns with it."""
