"""An NVIDIA GPU as a device: PyCUDA and cuda-bindings."""
