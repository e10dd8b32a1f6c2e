"""What was measured: written, read, compared, drawn."""
