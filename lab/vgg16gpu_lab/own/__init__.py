"""Somebody's own variants: written from a template, read from a folder."""
