"""Six exercises: `vgg16gpu lab exercise`. Each folder has a kernel with a hole, its check, hints and a solution."""
