"""int8: scales, integer weights, the file beside the model."""
