"""The API: a module for each topic has its routes, and the shapes of their requests and answers.

A shape is a pydantic model: it has names, types and limits, and is made of values of the store
(`of`). A route names the role that it needs. Not for: decisions, which are the store's; or statuses
of errors (`server.errors`).
"""
