"""LeNet on the lab's convolutions."""
