"""Known device types and models."""
