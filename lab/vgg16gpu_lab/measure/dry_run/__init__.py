"""A dry run of a variant in a process of its own, under sanitizers."""
