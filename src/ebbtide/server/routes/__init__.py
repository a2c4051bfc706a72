"""The API routes, one module for each topic. They call the store, and decide nothing themselves."""
