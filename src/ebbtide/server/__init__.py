"""The HTTP server: the store and the collector's runs in lakeFS's wire format."""
