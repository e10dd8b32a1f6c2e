"""A plan on a device: uploaded, run, fed with batches."""
