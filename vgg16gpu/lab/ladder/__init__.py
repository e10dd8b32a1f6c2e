"""The ladder: a whole VGG from the naive kernels to the product's own, one idea a rung, each checked and timed."""
