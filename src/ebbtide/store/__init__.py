"""Ebbtide's own versioned store: metadata in a SQL database, objects on a storage.

`embedded` opens a store, and `repository` is one repository of it. Each package is one topic, with
its operations and its SQL side by side. A package imports only packages that stand before it in
this list: database, content, repositories, access, purges, refs, staging, objects, commits,
collections, collecting, reclaim.

Not here: which commits a policy keeps (`ebbtide.retention`), and runs (`ebbtide.gc`).
"""
