"""`vgg16gpu model`."""
