"""Looks at runs from outside: explains why a file or commit exists, and verifies plans and sweeps.

`explain` says what keeps an address or a commit. It asks which trees hold an address (`search`),
and which run deleted it (`past_runs`). It decides as a run does.

`verify` checks a plan before its sweep, and the record of the sweep after it: by themselves
(`plan_checks`), and by a second reader of what commits need. These modules import neither the mark,
nor the index, the subtraction or keys. Two things are shared with a run: the decision on commits
(`retention.decision`), which is pure, and the format's reading of its metadata.

Nothing here changes a repository. Not for: making or carrying out plans (`gc`).
"""
