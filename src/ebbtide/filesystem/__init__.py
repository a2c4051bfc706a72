"""The file system of fsspec: objects of branches, tags and commits as `ebbtide://REPO/REF/PATH`.

It needs the extra `fsspec`. Not for: collecting (`ebbtide.api`).
"""
