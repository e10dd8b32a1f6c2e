"""`vgg16gpu testbench`."""
