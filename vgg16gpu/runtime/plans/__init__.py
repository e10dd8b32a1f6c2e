"""Plans on one device: several sizes, one copy of the weights, what is used least goes first."""
