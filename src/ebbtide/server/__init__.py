"""The HTTP server: the store and the collector's runs in lakeFS's wire format, and the pages.

`app` puts both together. `api` has the routes with the shapes of their bodies, `pages` what people
see, and `jobs` the runs, which are processes of their own. HTTP stays in this package, and no rule
of the store is decided here.
"""
