"""`vgg16gpu infer`."""
