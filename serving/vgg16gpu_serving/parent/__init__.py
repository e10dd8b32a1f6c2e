"""The process that starts all others: it keeps what must not change, and starts again who dies."""
