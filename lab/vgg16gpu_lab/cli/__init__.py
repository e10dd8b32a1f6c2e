"""`vgg16gpu lab`."""
