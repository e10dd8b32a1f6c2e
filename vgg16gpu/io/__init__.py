"""Files to arrays and back, and what is said of them. Knows no model and no device."""
