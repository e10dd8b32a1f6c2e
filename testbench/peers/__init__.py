"""Peers of what only this project measures: folders of pictures, servers."""
