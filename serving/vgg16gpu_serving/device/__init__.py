"""The process that has a device: what front ends ask for becomes batches of one engine."""
