"""The JSON bodies of requests and answers, by topic, as pydantic models.

A model says names, types and limits, and is made of values of the store (`of`). Not for: what the
requests do (`routes`), or calls of the store.
"""
