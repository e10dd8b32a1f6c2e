"""Measurements: how long a model takes, where the time goes, and how others do on the same inputs in the same process."""
