"""Makes plans: decides on commits, finds the candidates, and checks the gates.

`making` has the order of the steps, and `subtract` the query for the candidates. `incremental`
finds the files that a run need not list, and `plan` is the file. Nothing here deletes.
"""
