"""Files as the inputs of a network: which files, decoded by whom, of what size."""
