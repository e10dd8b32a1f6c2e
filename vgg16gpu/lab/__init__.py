"""The convolution lab: published experiments on GPU convolutions, run again, judged and drawn."""
