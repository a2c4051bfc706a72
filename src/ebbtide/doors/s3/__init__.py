"""The S3 gateway: clients of S3 read and write branches.

A bucket is a repository, and a key is `REF/PATH`. Not for: the API (`server.api`).
"""
