"""Operators for schedulers: Airflow and Dagster. Each module needs the scheduler's own package.

They collect a repository through `ebbtide.api`, and report in the scheduler's own terms.
"""
