"""cuDNN, and other ways to a library of convolutions."""
