"""Repositories of a lakeFS server, collected in place of its own job.

Refs and commits come from the server's API, trees and nodes from the storage namespace. Not for:
the API of lakeFS that `ebbtide serve` answers (`ebbtide.server`).
"""
