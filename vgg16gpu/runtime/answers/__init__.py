"""Files in, answers out, in the order of the files."""
