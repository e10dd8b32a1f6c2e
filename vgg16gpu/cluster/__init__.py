"""One model on many devices and machines: a pool of engines, shards of a long list, Ray."""
