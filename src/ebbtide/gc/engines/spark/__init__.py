"""The engine on Spark, and Spark's JVM, sessions and settings.

`engine` implements relations and steps, `session` starts and ends Spark, `jvm` makes that fast, and
`conf` has the settings. Besides `gc.daemon`, nothing else imports PySpark. Not for:
what the steps do.
"""
