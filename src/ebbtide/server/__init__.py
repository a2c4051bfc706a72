"""The HTTP server: the store and the collector's runs in lakeFS's wire format, and the pages.

`app` makes the application. `api` has the routes and the shapes of their bodies, and `pages` the
web pages. `jobs` starts each run as a process of its own. The store and the collector know nothing
of HTTP, and this package decides no rule of the store.
"""
