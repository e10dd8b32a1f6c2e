"""Variants checked and timed, beside a library's own best."""
