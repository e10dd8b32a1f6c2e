"""Other frameworks on the same model, each in a process of its own."""
