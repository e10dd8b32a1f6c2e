"""Models to run and pictures to run them on: the VGG generator, the public VGG16, the digits net, class names."""
