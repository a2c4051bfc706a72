"""The engines that carry out the steps of a run: Spark, and DuckDB where one machine is enough.

`base` is their contract. Rows are compared by SQL text (`Query`), which stands beside the code that
needs it. Not for: what a step does.
"""
