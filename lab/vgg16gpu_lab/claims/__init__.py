"""What the five reports claim, judged by their tables and by our records."""
