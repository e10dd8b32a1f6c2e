"""How fast a server answers over HTTP, and how long its clients wait: `python -m testbench.server URL`."""
