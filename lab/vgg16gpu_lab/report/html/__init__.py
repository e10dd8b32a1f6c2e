"""HTML: elements, highlighting, pictures, style."""
