"""The API. Each topic has a module with its routes, and the shapes of their requests and answers.

A shape is a pydantic model with names, types and limits. Its method `of` makes an answer from
values of the store. A route names the role that it needs. Not for: decisions, which the store
makes; or statuses of errors (`server.errors`).
"""
