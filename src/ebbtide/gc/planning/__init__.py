"""Makes plans: decides on commits, finds the candidates, and checks the gates.

`making` is the order of the steps, `subtract` the query for the candidates, `incremental` what a
run need not list, and `plan` the file. Nothing here deletes.
"""
