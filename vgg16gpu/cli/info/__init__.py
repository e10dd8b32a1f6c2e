"""`vgg16gpu info`."""
