"""From a folder of pictures to rows of a CSV: each stage alone, whole runs, and what others do beside them."""
