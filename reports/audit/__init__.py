"""Adapters for other people's ports, so that they can be judged like any implementation."""
