"""The Python interface: opens stores and repositories, and collects them.

The root package exports its names (`import ebbtide`). The command line and the server open
repositories and engines with the same functions. Not for: reading and writing objects
(`ebbtide.store`, `ebbtide.filesystem`).
"""
