"""Explains why a file or commit exists, or why a run deleted it.

`explainer` puts the answer together: what protects an address (`keepers`), which commits have it
(`holders`), which run deleted it (`past`). It changes nothing, and decides as a run does.
"""
