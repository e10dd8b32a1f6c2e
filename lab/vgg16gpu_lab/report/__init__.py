"""The records of a folder and the kernel sources as one HTML page that needs no network."""
