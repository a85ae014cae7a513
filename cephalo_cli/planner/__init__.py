"""From a profile to a proven optimal plan."""
