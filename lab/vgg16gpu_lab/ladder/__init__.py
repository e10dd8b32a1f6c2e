"""The ladder: a whole VGG from the naive kernels to the product's own, rung by rung, each checked and timed."""
