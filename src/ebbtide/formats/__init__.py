"""Repository formats: each is one class that gives the collector its five relations."""
