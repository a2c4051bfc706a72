"""The collector: plans which files to delete, verifies the plan, and deletes the files.

`collector` is one run, from its lease to its report. It reads as a run goes: `planner` makes a
plan from `store`, `committed`, `uncommitted` and `candidates`, and `sweep` carries it out.
`engines` say what a step may use, and carry steps out. A repository is known through `formats.base`
and `formats.capabilities`: no format, database or HTTP here.
"""
