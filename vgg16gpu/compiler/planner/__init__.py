"""Which kernels compute a graph, when, and where every value lies."""
