"""The page at `/`, and the explanations that it shows: a process of its own computes them. See docs/serve.md."""
