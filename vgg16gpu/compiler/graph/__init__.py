"""The graph of ops, the shapes of its values, and the passes from graph to graph."""
