"""The collector: plans which files to delete, verifies the plan, and deletes the files.

`collector` is one run, from its lease to its report. It reads as a run goes: `relations`,
`planning`, `sweeping`. `engine` says what a step may use; `spark` and `none` carry steps out. A
repository is known through `formats.base` alone: no format, database or HTTP here.
"""
