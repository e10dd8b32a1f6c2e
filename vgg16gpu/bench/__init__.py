"""Measurements: how long a model takes, where the time goes, and how others do beside it in the same process."""
