"""Plays a plan out and reports what it would do."""
