"""Ebbtide's own versioned store: metadata in a SQL database, objects on a storage.

`embedded` opens a store, and `repository` is one repository of it. Each package below is a topic,
with its operations and its SQL side by side. A package may use those that stand before it:
database, content, repositories, access, purges, refs, staging, objects, commits, collections,
collecting, reclaim.

Not here: which commits a policy keeps (`ebbtide.retention`), and runs (`ebbtide.gc`).
"""
