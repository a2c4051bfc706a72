"""The collector: plans what goes, proves it, and reclaims the space, on Spark."""
