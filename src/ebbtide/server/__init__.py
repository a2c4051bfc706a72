"""The HTTP server: the store, and the collector's runs, in the wire format of lakeFS clients."""
