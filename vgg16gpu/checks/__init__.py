"""Right or wrong: errors, references, promises, and what is wrong with this machine."""
