"""The API routes, one module for each topic. They call the store, and decide nothing themselves.

Each route names the role that it needs. Shapes of bodies belong to `wire`, and errors become
statuses in `server.errors`.
"""
