"""Spark itself: its JVM, sessions and settings, and the engine over it."""
