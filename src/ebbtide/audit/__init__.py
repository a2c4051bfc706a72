"""Looks at runs from outside: explains why a file or commit exists, and verifies plans and sweeps.

`explainer` puts an explanation together: what protects an address (`keepers`), which commits have
it (`holders`), which run deleted it (`past`). It decides as a run does.

`verify` checks a plan before its sweep, and the record of the sweep after it. It and the modules
that it uses import neither the mark, nor the index, the subtraction or keys: trees and nodes are
read by a walk of their own. Two things are shared with a run: the decision on commits
(`retention.decision`), which is pure, and the format's reading of its metadata.

Nothing here changes a repository. Not for: making or carrying out plans (`gc`).
"""
