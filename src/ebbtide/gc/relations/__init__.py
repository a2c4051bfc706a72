"""The relations that plans and sweeps compute from: listed, live and protected addresses."""
