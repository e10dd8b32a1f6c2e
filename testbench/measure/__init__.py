"""Programs that measure one thing each, for docs/ and the records."""
