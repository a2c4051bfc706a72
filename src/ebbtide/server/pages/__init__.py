"""The server's web pages: the store for people, rendered by the server.

They call the same functions as the routes and the command line, and decide nothing.
"""
