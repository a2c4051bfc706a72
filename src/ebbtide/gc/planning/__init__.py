"""Making a plan: what is decided, what may go, and the gates in between."""
