"""The engine on Spark, and Spark's JVM, sessions and settings."""
