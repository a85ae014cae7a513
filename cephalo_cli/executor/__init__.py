"""Training: interprets the schedule record by record."""
