"""The commands: they read arguments, call the layers below, and print. Not for: decisions.

One module for each group of commands; `command` has what all share. Functions import slow modules
(Spark, Arrow, SQLAlchemy, pydantic) themselves, so that `ebbtide --help` answers at once.
"""
