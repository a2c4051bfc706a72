"""The server's web pages: the store for people, rendered by the server.

The pages call the same functions as the API routes and the command line. They decide nothing
themselves.
"""
