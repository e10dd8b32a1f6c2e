"""How fast a server answers over HTTP, and how long its clients wait: `vgg16gpu bench --server URL`."""
