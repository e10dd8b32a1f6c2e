"""`vgg16gpu bench`."""
