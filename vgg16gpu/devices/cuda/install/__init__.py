"""PyCUDA for the driver of this machine. Standard library alone."""
