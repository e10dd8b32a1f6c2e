"""The figures of the reports, drawn from records."""
