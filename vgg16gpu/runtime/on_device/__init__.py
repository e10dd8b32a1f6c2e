"""Runs on arrays that lie on the device, of other libraries and for them."""
