"""What can be asked of the server, one module for each topic. They call the store, and no more."""
